package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// A suite makes the checks of one plugin.
type suite struct {
	plugin    Target
	conf      Config
	versions  []string // that the plugin supports, of those known here
	version   string   // the newest of them
	supported Outcome  // of VERSION
	tried     bool     // whether ADD has been tried
	broken    bool     // whether that failed
	ends      []func() // what ends what the checks have opened
}

// newSuite asks for the plugin's versions.
func newSuite(ctx context.Context, plugin Target, conf Config) (*suite, error) {
	s := &suite{plugin: plugin, conf: conf}
	return s, s.prepare(ctx)
}

// find makes one check.
func (s *suite) find(ctx context.Context, c Check) Finding {
	f := Finding{Check: c}
	if why, ok := s.conf.Skip[c.Name]; ok {
		f.Skipped = why
		return f
	}
	if c.Name != "version" && len(s.versions) == 0 {
		f.Skipped = `the check "version" has failed`
		return f
	}
	defer s.clear()
	f.Err = c.do(ctx, s)
	if why := (*skipError)(nil); errors.As(f.Err, &why) {
		f.Err, f.Skipped = nil, why.Error()
	}
	return f
}

// A skipError says why a check cannot be made for this plugin.
type skipError struct{ why string }

func (e *skipError) Error() string { return e.why }

func (s *suite) prepare(ctx context.Context) error {
	if s.conf.Stdin == nil {
		return errors.New("a Config needs Stdin")
	}
	for _, name := range slices.Sorted(maps.Keys(s.conf.Skip)) {
		if !slices.ContainsFunc(Checks(), func(c Check) bool { return c.Name == name }) {
			return fmt.Errorf("there is no check %q to skip", name)
		}
	}
	for typ := range s.conf.Fakes {
		if !slices.Contains(s.types(), typ) {
			return fmt.Errorf("the fake %q is neither in Delegates nor in Idle", typ)
		}
	}
	defer s.clear()
	b, err := s.bench(ctx)
	if err == nil {
		_, err = b.netns("c1")
	}
	if err != nil {
		return err
	}
	s.supported = b.call(ctx, Call{Command: "VERSION"})
	if s.versions = known(s.supported); len(s.versions) > 0 {
		s.version = s.versions[len(s.versions)-1]
	}
	return nil
}

// types are those of all fakes.
func (s *suite) types() []string { return slices.Concat(s.conf.Delegates, s.conf.Idle) }

// atEnd has end called when the check ends, before what was opened earlier is ended.
func (s *suite) atEnd(end func()) { s.ends = append(s.ends, end) }

// clear ends what the checks have opened.
func (s *suite) clear() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
	s.ends = nil
}

// bench returns a host on which nothing has been attached.
func (s *suite) bench(ctx context.Context) (*bench, error) {
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		return nil, err
	}
	s.atEnd(func() { _ = os.RemoveAll(dir) }) // it is temporary
	b := &bench{suite: s, dir: dir, version: s.version, spaces: make(map[string]string)}
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// attached returns a bench on which c1 has been attached, and the outcome of the
// ADD.
func (s *suite) attached(ctx context.Context) (*bench, Outcome, error) {
	if err := s.works(); err != nil {
		return nil, Outcome{}, err
	}
	b, err := s.bench(ctx)
	if err != nil {
		return nil, Outcome{}, err
	}
	o := b.call(ctx, Call{Command: "ADD"})
	err = o.Err()
	s.broken = err != nil && !s.tried
	s.tried = true
	if err != nil {
		return nil, o, fmt.Errorf("ADD fails: %w", err)
	}
	return b, o, nil
}

// works fails if the first ADD failed.
func (s *suite) works() error {
	if s.broken {
		return &skipError{"the first ADD has failed: see the check \"add\""}
	}
	return nil
}

// A trial is a check of a bench: on which c1 has been attached by the ADD that is given, or
// on which nothing has been attached.
type trial func(ctx context.Context, b *bench, added Outcome) error

// onAttached returns a check that makes try after an ADD. It needs these commands, or
// [delegates].
func onAttached(try trial, needs ...string) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		if err := s.need(needs...); err != nil {
			return err
		}
		b, o, err := s.attached(ctx)
		if err != nil {
			return err
		}
		return try(ctx, b, o)
	}
}

// onNew is onAttached without the ADD.
func onNew(try trial, needs ...string) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		if err := s.need(needs...); err != nil {
			return err
		}
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		return try(ctx, b, Outcome{})
	}
}

// onEach returns a check that makes try, on a bench of its own, for each of the delegates
// that command runs for one attachment. These are the k-th of n.
func onEach(command string, try func(ctx context.Context, s *suite, k, n int) error) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		n := 0
		if err := onAttached(func(ctx context.Context, b *bench, o Outcome) error {
			if command != "ADD" {
				if err := b.call(ctx, b.later(command, o)).Err(); err != nil {
					return err
				}
			}
			if n = len(b.calls(command)); n == 0 {
				return fmt.Errorf("%s runs no delegate", command)
			}
			return nil
		}, command, delegates)(ctx, s); err != nil {
			return err
		}
		var errs []error
		for k := 1; k <= n; k++ {
			errs = append(errs, try(ctx, s, k, n))
		}
		return errors.Join(errs...)
	}
}

// delegates, as what a check needs, means that the plugin has some.
const delegates = "delegates"

// need fails unless the plugin supports a version that has these commands.
func (s *suite) need(what ...string) error {
	for _, w := range what {
		if w == delegates {
			if len(s.conf.Delegates) == 0 {
				return &skipError{"the plugin has no delegates"}
			}
			continue
		}
		since := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[w]
		if since != "" && !slices.ContainsFunc(s.versions, func(v string) bool { return atLeast(v, since) }) {
			return &skipError{fmt.Sprintf("%s is not in the versions that the plugin supports, %q", w, s.versions)}
		}
	}
	return nil
}
