package autoconf

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/metacni/metacni/netconf"
)

// Run publishes, and keeps what is published right, until ctx ends: then it
// fails with its error. It fails with [ErrReadinessLost] when the readiness file
// has been there and was removed, even if it has been made again since; with
// [ErrInvalid] when the fields cannot be used, with [ErrLocked] when another
// call is at work on m, and with [errors.ErrUnsupported] where it cannot
// publish. All other conditions are reported by [Manager.State] and waited out:
//
//   - The primary network's file is broken: what was made of it last stays; what
//     an earlier Run made of it for Grace, then the next valid network is taken.
//   - It is gone: what was made of it last stays, for Grace. Then the next valid
//     network is taken or, without one, RemoveWhenGone decides. If the next is
//     the same network, in a file that was renamed, it is taken at once.
//   - A valid network appears that sorts before it: that is taken.
//   - Others change, rename or remove the published file: it is restored, at
//     once, and when that has to be done again and again after 1 s, 2 s and so on,
//     at most a minute. After a minute of peace it is done at once again.
//   - Writing fails: it is tried again after such pauses.
//   - Another Manager has the Lock: Run stands by and takes over from it.
//   - Directories cannot be watched: Run looks every second.
//
// The file published last stays when Run returns, however it does: without it,
// pods would get other networks than they ask for, and nobody would be told. See
// [Manager.Uninstall].
//
// Run starts one goroutine, which ends before Run does.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	src := newWatcher()
	defer src.Close()
	return m.run(ctx, src)
}

// begin marks m as at work.
func (m *Manager) begin() error {
	if err := m.validate(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy {
		return fail("use", m.Output, ErrLocked)
	}
	m.busy = true
	return nil
}

func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
}

// run is Run with src to tell it what happens.
func (m *Manager) run(ctx context.Context, src source) error {
	var held *os.File // the lock
	defer func() {
		if held != nil {
			_ = held.Close()
		}
	}()
	var mem memory
	plan := schedule{quiet: cmp.Or(m.Debounce, defaultDebounce), longest: cmp.Or(m.MaxDelay, defaultMaxDelay)}
	plan.looked(time.Now(), 0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return fail("run", m.Dir, ctx.Err())
		case <-src.Happened():
			plan.event(time.Now())
		case <-timer.C:
		}
		if now := time.Now(); now.Before(plan.due()) {
			timer.Reset(plan.due().Sub(now))
			continue
		}
		wait, err := m.turn(src, &held, &mem)
		if err != nil {
			return fail("run", m.Dir, err)
		}
		plan.looked(time.Now(), wait)
		timer.Reset(wait)
	}
}

// turn looks once and does what is to be done. It returns how long to wait
// for something to happen.
func (m *Manager) turn(src source, held **os.File, mem *memory) (time.Duration, error) {
	if m.Lock != "" && !holds(*held, m.Lock) {
		f, err := m.lock()
		if err != nil {
			m.setState(State{Degraded: err})
			return pollInterval, unsupported(err)
		}
		if *held != nil {
			_ = (*held).Close()
		}
		*held = f
	}
	// First the watch, so that nothing happens between the look and the wait
	// without being noticed.
	watchErr := m.watch(src)
	lost := src.Lost()
	s := m.pass(mem, time.Now(), lost, watchErr)
	if s.end != nil {
		return 0, s.end
	}
	wait := cmp.Or(m.Resync, defaultResync)
	if watchErr != nil {
		wait = min(wait, pollInterval)
	}
	if s.wait != 0 {
		wait = min(wait, s.wait)
	}
	return wait, nil
}

// lock takes the Lock or fails, with [ErrLocked] if someone else has it.
func (m *Manager) lock() (*os.File, error) {
	f, err := lock(m.Lock)
	if err == nil && f == nil {
		err = ErrLocked
	}
	return f, fail("lock", m.Lock, err)
}

// holds reports whether f is the file at path still: to hold the lock of a file
// that was removed keeps nobody away.
func holds(f *os.File, path string) bool {
	if f == nil {
		return false
	}
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, there)
}

// unsupported returns err if there is no use in trying again.
func unsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// watch has src watch what matters now. To begin to watch may show that
// something else matters: a directory that was made meanwhile.
func (m *Manager) watch(src source) error {
	dir, _ := m.outputName()
	considers := m.finder(m.own()).considers
	for range 5 {
		w, readyEntry := places(m.Dir, dir, m.Ready, considers)
		if changed, err := src.Watch(w, readyEntry); err != nil || !changed {
			return err
		}
	}
	return nil // what is changing this fast is told by events
}

// pass is one look and what follows from it. lost says that the readiness file
// was removed, whether or not it is there; trouble is to be told of as well.
func (m *Manager) pass(mem *memory, now time.Time, lost bool, trouble ...error) step {
	out := m.output()
	p := m.policy(out)
	f := m.look(out)
	if lost && mem.ready {
		f.ready = false
	}
	next, s := p.next(*mem, f, now)
	var err error
	switch s.do {
	case publish:
		err = out.publish(next.want, f.disk)
	case remove:
		err = out.remove(f.disk)
	}
	p.did(&next, &s, err, now)
	*mem = next
	s.report(trouble...)
	m.tell(next, f, s, out)
	return s
}

// look gathers the facts.
func (m *Manager) look(out output) facts {
	f := facts{ready: m.isReady(), disk: out.look()}
	f.found = m.finder(out.own).find(dirFS(m.Dir))
	f.found.err = fail("find", m.Dir, f.found.err)
	if f.found.primary.File != "" {
		f.doc, f.docErr = m.document(f.found.primary)
	}
	return f
}

// isReady reports whether the readiness file exists, or none is needed.
func (m *Manager) isReady() bool {
	if m.Ready == "" {
		return true
	}
	_, err := os.Stat(m.Ready)
	return err == nil
}

// document makes what to publish in front of p.
func (m *Manager) document(p Primary) (document, error) {
	if m.ClusterNetworkDir != "" {
		p.Path = filepath.Join(m.ClusterNetworkDir, p.File)
	}
	render := m.Render
	if render == nil {
		render = func(p Primary) (netconf.Network, error) { return Render(m.Template, p) }
	}
	n, err := render(p)
	if err != nil {
		return document{}, asError("render", p.File, err)
	}
	doc, err := write(n)
	doc.primary = p.File
	return doc, fail("render", p.File, err)
}

// Publish looks once, and publishes in front of what it finds. It returns nil
// when the published file is as it has to be, whether that was to be written or
// not, and is what runtimes take. Otherwise it fails with what [State.Degraded]
// says: [ErrNoPrimary] together with why files were passed over, [ErrNotReady],
// [ErrShadowed] (the file is published nonetheless), an error of Render or of a
// file; or as [Manager.Run] does, with [ErrInvalid] and [ErrLocked]. It removes
// nothing but the other form of its own file, and waits for nothing. It knows
// nothing of earlier calls: where the primary network's file is broken, it takes
// the next that is valid.
func (m *Manager) Publish() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	if m.Lock != "" {
		f, err := m.lock()
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
	}
	m.pass(&memory{once: true}, time.Now(), false)
	s := m.State()
	if !errors.Is(s.Degraded, ErrNoPrimary) {
		return s.Degraded
	}
	errs := []error{s.Degraded}
	for _, skipped := range s.Skipped {
		errs = append(errs, skipped.Err)
	}
	return join("publish", m.Output, errs...)
}

// Uninstall removes the published file, in both its forms, and temporary files
// that a crash may have left. A file of that name is removed if it is the
// configuration of a plugin of ours, or none that could be used, and is left
// where it is the network of someone else. What is not there is not an error.
// Uninstall fails as [Manager.Run] does, with [ErrInvalid] and [ErrLocked], with
// [ErrNotRegular] where something other than a file has the name, and with
// errors of files.
func (m *Manager) Uninstall() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	if m.Lock != "" {
		f, err := m.lock()
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
	}
	out := m.output()
	err := out.remove(out.look())
	m.setState(State{Degraded: err})
	return err
}
