package autoconf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/inroot"
)

// The durations of a [Manager].
const (
	defaultGrace    = 10 * time.Second
	defaultDebounce = 100 * time.Millisecond
	defaultResync   = 30 * time.Second

	// indirectInterval is how often Run looks at what links lead to.
	indirectInterval = 5 * time.Second

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
//   - [errors.ErrUnsupported] where it cannot publish.
//
// It reports every other problem in [State.Degraded], and waits for its end:
//
//   - The primary network's file is broken: the file published for it stays. A
//     file that an earlier Run published stays for Grace, then Run takes the next
//     valid network.
//   - The primary network's file is removed: the published file stays for
//     Grace, because an upgrade removes and makes the file. Then Run takes the next
//     valid network; without one the published file stays. A network whose file
//     was only renamed is taken at once.
//   - Another valid network sorts before the primary one: Run takes it.
//   - Others change, rename or remove the published file: Run restores it at
//     once; when that happens again and again, after 1 s, 2 s and so on, at most
//     a minute. After a minute without a change it restores at once again.
//   - Writing fails: Run tries again after such pauses.
//   - Another Manager has the Lock: Run waits and takes over from it.
//   - Directories cannot be watched or do not exist: Run looks every second.
//
// Run looks when something changes in Dir, next to Output, or about Ready. What links
// and sub-directories of Dir lead to it looks at every 5 s, and at everything every 30 s.
//
// The published file stays when Run returns: without it, pods would silently get
// other networks than they ask for. [Manager.Uninstall] removes it.
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
	defer func() { release(held) }()
	var mem memory
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
		wait, err := m.turn(src, &held, &mem)
		if err != nil {
			return fail("run", m.Dir, err)
		}
		timer.Reset(wait)
	}
}

// turn looks once and acts. It returns how long to wait for the next event.
func (m *Manager) turn(src source, held **os.File, mem *memory) (time.Duration, error) {
	if err := m.lock(held); err != nil {
		m.setState(State{Degraded: err})
		return pollInterval, unsupported(err)
	}
	// First the watch, so that nothing happens between the look and the wait
	// without being noticed.
	places, missing, indirect := m.places()
	watchErr := src.Watch(places)
	s := m.pass(mem, m.policy(m.output()), time.Now(), src.Lost(), watchErr)
	wait := defaultResync
	switch {
	case missing || watchErr != nil:
		wait = pollInterval
	case indirect:
		wait = indirectInterval
	}
	wait = cmp.Or(m.resync, wait)
	if s.wait != 0 {
		wait = min(wait, s.wait)
	}
	return wait, s.end
}

// lock has held be the Lock, if one is needed, or fails: with [ErrLocked] when
// someone else has it.
func (m *Manager) lock(held **os.File) error {
	if m.Lock == "" || *held != nil {
		return nil
	}
	path, err := inroot.Resolve(m.Root, m.Lock)
	if err == nil {
		*held, err = lock(path)
	}
	if err == nil && *held == nil {
		err = ErrLocked
		if who, readErr := os.ReadFile(path); readErr == nil && len(who) > 0 {
			err = because{ErrLocked, errors.New(strings.TrimSpace(string(who)))}
		}
	}
	if err == nil {
		// It is for the error of another, who locks meanwhile; nothing depends on it.
		_ = (*held).Truncate(0)
		_, _ = (*held).WriteAt(fmt.Appendf(nil, "%s, which publishes %s\n", self(), m.Output), 0)
	}
	return fail("lock", m.Lock, err)
}

// self says which process this is, also to readers in another container, where the number
// alone means another process.
func self() string {
	program, err := os.Executable()
	if err != nil {
		program = "a program"
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s, process %d on host %s", filepath.Base(program), os.Getpid(), host)
}

// release releases a lock, if there is one.
func release(held *os.File) {
	if held != nil {
		// After closing alone, a child that has not called exec yet would keep the lock.
		_ = flock.Unlock(int(held.Fd()))
		_ = held.Close()
	}
}

// unsupported returns err if there is no use in trying again.
func unsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return nil
}

// pass is one look and what follows from it. lost says that the readiness file
// was removed, whether or not it is there; trouble is to be told of as well.
func (m *Manager) pass(mem *memory, p policy, now time.Time, lost bool, trouble ...error) step {
	out := m.output()
	f := m.look(out)
	if lost && mem.ready {
		f.ready = false
	}
	next, s := p.next(*mem, f, now)
	var err error
	if s.publish {
		err = out.publish(next.want, f.disk)
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
	f.found = m.finder(out.own).find(m.files())
	f.found.err = fail("find", m.Dir, f.found.err)
	if f.found.primary.Name != "" {
		f.doc, f.docErr = m.document(f.found.primary)
	}
	return f
}

// isReady reports whether the readiness file exists, or none is needed.
func (m *Manager) isReady() bool {
	if m.Ready == "" {
		return true
	}
	_, err := m.stat(m.Ready)
	return err == nil
}

// document makes what to publish in front of p.
func (m *Manager) document(p candidate) (document, error) {
	if m.ClusterNetworkDir != "" {
		p.path = filepath.Join(m.ClusterNetworkDir, p.Name)
	}
	n, err := render(m.Template, p)
	if err != nil {
		return document{}, err
	}
	doc, err := write(n)
	doc.primary = p.Name
	return doc, fail("render", p.Name, err)
}

// Publish looks once, and publishes in front of what it finds. It returns nil when
// the published file is right, whether or not it had to be written, and runtimes
// take it. Otherwise it fails with what [State.Degraded] says:
//
//   - [ErrNoPrimary], with the reason for each file that was passed over,
//   - [ErrNotReady],
//   - [ErrShadowed], although the file is published,
//   - a failure to read or write a file,
//
// or with [ErrInvalid] or [ErrLocked] as [Manager.Run] does. It waits for
// nothing, and does not remember earlier calls: where the primary network's file
// is broken, it takes the next that is valid. It removes no file except the other
// form of its own.
func (m *Manager) Publish() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	var held *os.File
	if err := m.lock(&held); err != nil {
		return err
	}
	defer release(held)
	p := m.policy(m.output())
	p.once = true
	m.pass(&memory{}, p, time.Now(), false)
	s := m.State()
	if !errors.Is(s.Degraded, ErrNoPrimary) {
		return s.Degraded
	}
	return fail("publish", m.Output, errors.Join(append([]error{s.Degraded}, s.Skipped...)...))
}

// Uninstall removes the published file, in both its forms, and temporary files
// that a crash may have left. A file of that name is removed if it has a plugin of
// ours, or is no configuration at all. The configuration of someone else stays.
// Uninstall returns nil when there is nothing to remove. It fails with
// [ErrInvalid] and [ErrLocked] as [Manager.Run] does, when something that is not
// a file has the name, and when a file cannot be read or removed.
func (m *Manager) Uninstall() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.end()
	var held *os.File
	if err := m.lock(&held); err != nil {
		return err
	}
	defer release(held)
	out := m.output()
	err := out.remove(out.look())
	m.setState(State{Degraded: err})
	return err
}
