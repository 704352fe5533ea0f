package autoconf

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/netconf"
)

const (
	// defaultResync is how often Run looks without being told of anything.
	defaultResync = 5 * time.Second

	// pollInterval is how often Run looks for what it cannot be told of: the end of
	// another's lock, and everything where nothing can be watched.
	pollInterval = time.Second
)

// Run publishes and keeps the published file right until ctx ends; then it returns
// nil. It fails with
//
//   - [ErrInvalid] when the fields cannot be used,
//   - [ErrLocked] when another method works on m,
//   - [ErrReadinessLost] when the readiness file existed and was removed, even
//     if it has been made again since,
//   - [errors.ErrUnsupported] on other systems than Linux.
//
// It reports every other problem in [State.Degraded], and waits for its end:
//
//   - The primary network's file is broken: the file published for it stays. A
//     file that an earlier Run published stays for Grace, then Run takes the next
//     valid network.
//   - The primary network's file is removed: the published file stays for
//     Grace, because an upgrade removes and makes the file. Then Run takes the next
//     valid network; without one the published file stays. A network whose file
//     was only renamed is taken at once. So it is when Run begins, or takes over the
//     Lock, and an earlier Manager has published a network of another name.
//   - Another valid network sorts before the primary one: Run takes it.
//   - Others change, rename or remove the published file: Run restores it at
//     once; when that happens again and again, after 1 s, 2 s and so on, at most
//     a minute. After a minute without a change it restores at once again.
//   - Writing fails: Run tries again after such pauses.
//   - Another Manager has the Lock: Run waits and takes over from it.
//   - Directories cannot be watched or do not exist: Run looks every second.
//
// Run looks when something changes in Dir, next to Output, or about Ready, and every 5 s
// at everything, so also at what links and sub-directories of Dir lead to.
//
// The published file stays when Run returns: without it, pods would silently get
// other networks than they ask for. [Manager.Uninstall] removes it.
//
// Run starts one goroutine, which ends before Run does; none with Poll.
func (m *Manager) Run(ctx context.Context) error {
	if m.Poll {
		return m.run(ctx, poller{})
	}
	src := newWatcher()
	defer src.Close()
	return m.run(ctx, src)
}

// run is Run with src to tell it what happens.
func (m *Manager) run(ctx context.Context, src source) error {
	return m.alone(func() error {
		var held *os.File // the lock
		defer func() { flock.Release(held) }()
		state := machine{grace: cmp.Or(m.Grace, defaultGrace)}
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-src.Happened():
				timer.Reset(cmp.Or(m.Debounce, defaultDebounce))
				select {
				case <-ctx.Done():
					return nil
				case <-timer.C:
				}
			case <-timer.C:
			}
			wait, err := m.turn(src, &held, &state)
			if err != nil {
				return fail("run", m.Dir, err)
			}
			timer.Reset(wait)
		}
	})
}

// alone calls work while no other method of m works.
func (m *Manager) alone(work func() error) error {
	if runtime.GOOS != "linux" {
		return fail("use", m.Output, errors.ErrUnsupported)
	}
	if err := m.validate(); err != nil {
		return err
	}
	if !m.working.TryLock() {
		return fail("use", m.Output, ErrLocked)
	}
	defer m.working.Unlock()
	return work()
}

// locked calls work while no other method of m, and no other manager, works.
func (m *Manager) locked(work func() error) error {
	return m.alone(func() error {
		var held *os.File
		if err := m.lock(&held); err != nil {
			return err
		}
		defer flock.Release(held)
		return work()
	})
}

// lock has held be the Lock, if one is needed.
func (m *Manager) lock(held **os.File) (err error) {
	if m.Lock != "" && *held == nil {
		*held, err = lock(m.Root, m.Lock, "publishes "+m.Output)
	}
	return fail("lock", m.Lock, err)
}

// turn looks once and acts. It returns how long to wait for the next event.
func (m *Manager) turn(src source, held **os.File, state *machine) (time.Duration, error) {
	if err := m.lock(held); err != nil {
		m.setState(State{Degraded: err})
		return pollInterval, nil //nolint:nilerr // it is told, and tried again
	}
	// First the watch, so that nothing happens between the look and the wait
	// without being noticed.
	places, missing := m.places()
	lost, watchErr := src.Watch(places)
	s := m.pass(state, time.Now(), lost, watchErr)
	wait := cmp.Or(m.resync, defaultResync)
	if missing || m.Poll || watchErr != nil {
		wait = min(wait, pollInterval)
	}
	if s.wait != 0 {
		wait = min(wait, s.wait)
	}
	return wait, s.end
}

// places returns what to watch, and whether a directory does not exist.
func (m *Manager) places() (w watched, missing bool) {
	w = watched{dirs: map[string]bool{}}
	add := func(dir string, all bool) (real string) {
		real, err := inroot.Resolve(m.root(), dir)
		if info, statErr := os.Stat(real); err != nil || statErr != nil || !info.IsDir() {
			missing = true
			return real
		}
		w.dirs[real] = w.dirs[real] || all
		return real
	}
	add(m.Dir, true)
	add(filepath.Dir(filepath.Clean(m.Output)), true)
	if m.Ready != "" {
		// Not what a link leads to: that goes when a ConfigMap is replaced.
		w.ready = filepath.Join(add(filepath.Dir(filepath.Clean(m.Ready)), false), filepath.Base(m.Ready))
	}
	return w, missing
}

// pass is one look and what follows from it. lost says that the readiness file
// was removed, whether or not it is there; trouble is to be told of as well.
func (m *Manager) pass(state *machine, now time.Time, lost bool, trouble error) step {
	out := m.output()
	f := m.look(out)
	if lost && state.ready {
		f.ready = false
	}
	s := state.next(f, now)
	if s.publish {
		state.did(&s, out.publish(state.want, f.disk), now)
	}
	s.report(trouble)

	told := State{Skipped: f.found.errs(), Written: state.written, Restored: state.restored}
	if !state.published.isZero() && !state.undone && f.disk.err == nil {
		told.Primary, told.Network, told.Published = state.published.primary, state.published.network, out.file()
	}
	told.Degraded = fail("follow", m.Dir, errors.Join(s.degraded...))
	m.setState(told)
	return s
}

// look gathers the facts.
func (m *Manager) look(out output) facts {
	f := facts{ready: true, disk: out.look(), found: m.find(m.files()), fixed: m.Primary != ""}
	if m.Ready != "" {
		_, err := m.stat(m.Ready)
		f.ready = err == nil
	}
	f.found.err = fail("find", m.Dir, f.found.err)
	if p := f.found.primary; p.Name != "" {
		var path string
		if m.ClusterNetworkDir != "" {
			path = filepath.Join(m.ClusterNetworkDir, p.Name)
		}
		f.doc, f.docErr = newDocument(m.Template, p, path)
		f.docErr = fail("render", p.Name, f.docErr)
	}
	return f
}

// Find returns the file that Publish would take for the primary network now. It
// changes nothing, and does not need the readiness file to exist. It fails with
// [ErrNoPrimary] and why each file was passed over, and with [ErrInvalid] as
// [Manager.Run] does.
func (m *Manager) Find() (netconf.File, error) {
	if err := m.validate(); err != nil {
		return netconf.File{}, err
	}
	f := m.find(m.files())
	if f.primary.Name != "" {
		return f.primary, nil
	}
	errs := append([]error{ErrNoPrimary, fail("find", m.Dir, f.err)}, f.errs()...)
	return netconf.File{}, fail("find", m.Dir, errors.Join(errs...))
}

// Publish looks once, and publishes in front of what it finds. It returns nil when
// the published file is right, whether or not it had to be written, and runtimes
// take it. Otherwise it fails with what [State.Degraded] says:
//
//   - [ErrNoPrimary], with the reason for each file that was passed over,
//   - [ErrNotReady],
//   - an error, although the file is published, if runtimes take another file first,
//   - a failure to read or write a file,
//
// or with [ErrInvalid] or [ErrLocked] as [Manager.Run] does. It waits for
// nothing, and does not remember earlier calls: where the primary network's file
// is broken, it takes the next that is valid.
func (m *Manager) Publish() error {
	return m.locked(func() error {
		m.pass(&machine{}, time.Now(), false, nil) // without grace
		s := m.State()
		if !errors.Is(s.Degraded, ErrNoPrimary) {
			return s.Degraded
		}
		return fail("publish", m.Output, errors.Join(append([]error{s.Degraded}, s.Skipped...)...))
	})
}

// Uninstall removes the published file, and temporary files that a crash may have
// left. A file of that name is removed if it has a plugin of
// ours, or is no configuration at all. The configuration of someone else stays.
// Uninstall returns nil when there is nothing to remove. It fails with
// [ErrInvalid] and [ErrLocked] as [Manager.Run] does, when something that is not
// a file has the name, and when a file cannot be read or removed.
func (m *Manager) Uninstall() error {
	return m.locked(func() error {
		out := m.output()
		err := out.remove(out.look())
		m.setState(State{Degraded: err})
		return err
	})
}
