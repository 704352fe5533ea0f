package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A suite makes the checks of one plugin.
type suite struct {
	plugin    Target
	conf      Config
	kind      Kind
	versions  []string          // that the plugin supports, of those known here
	version   string            // the newest of them
	supported outcome           // of VERSION
	ifname    string            // CNI_IFNAME
	chained   bool              // whether each ADD gets a prevResult
	added     error             // how the first ADD failed
	missing   string            // what the first ADD lacked; empty when it lacked nothing
	wide      bool              // whether an IPAM plugin has more addresses than a check takes
	failed    map[string]string // checks, and the one that has failed: themselves, or what they come after
	unmade    []string          // the checks that were not made, and why
	ends      []func()          // what ends what a check has opened
	dirs      []string          // of the benches of a check

	mu      sync.Mutex // protects trouble
	trouble error      // of the suite itself, in a check
}

// newSuite asks for the plugin's versions and finds out its kind.
func newSuite(ctx context.Context, plugin Target, conf Config) (*suite, error) {
	s := &suite{plugin: plugin, conf: conf, ifname: "eth0", failed: make(map[string]string)}
	return s, s.prepare(ctx)
}

func (s *suite) prepare(ctx context.Context) error {
	if s.conf.Stdin == nil {
		return errors.New("a Config needs Stdin")
	}
	if s.conf.Kind != "" && !slices.Contains(kinds, s.conf.Kind) {
		return fmt.Errorf("the kind %q is none of %q", s.conf.Kind, kinds)
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
	if s.conf.Kind != "" {
		s.kind = Kind{Name: s.conf.Kind, Why: "Config.Kind says so"}
	}
	b, err := s.bench(ctx)
	if err != nil {
		return err
	}
	s.supported = b.call(ctx, delegatetest.Invocation{Command: "VERSION"})
	if s.versions = known(s.supported); len(s.versions) == 0 {
		return nil
	}
	s.version = s.versions[len(s.versions)-1]
	return s.identify(ctx)
}

// checks returns the findings, each when the sequence arrives at it.
func (s *suite) checks(ctx context.Context) iter.Seq[Finding] {
	return func(yield func(Finding) bool) {
		for _, c := range Checks() {
			if s.has(c) && !yield(s.find(ctx, c)) {
				return
			}
		}
	}
}

// has reports whether c is a check for this plugin.
func (s *suite) has(c Check) bool {
	return (c.Kinds == nil || slices.Contains(c.Kinds, s.kind.Name)) && (!c.Delegates || len(s.conf.Delegates) > 0) && (!c.Strict || s.conf.Strict)
}

// find makes one check.
func (s *suite) find(ctx context.Context, c Check) Finding {
	f, _ := s.try(ctx, c)
	return f
}

// try makes one check, and reports whether the machine lacks something for it.
func (s *suite) try(ctx context.Context, c Check) (f Finding, lacking bool) {
	f = Finding{Check: c, NotRun: s.obstacle(c)}
	if f.NotRun == "" {
		defer s.clear()
		err := c.do(ctx, s)
		why := (*notRunError)(nil)
		switch {
		case s.trouble != nil:
			lacking, f.NotRun = true, s.tell(s.trouble)
		case errors.As(err, &why):
			f.NotRun = s.tell(why)
		case err != nil:
			f.Err = errors.New(s.tell(err))
			s.failed[c.Name] = c.Name
		}
	}
	if f.NotRun != "" && !s.fails(f) {
		s.unmade = append(s.unmade, fmt.Sprintf("%s: %s", c.Name, f.NotRun))
	}
	return f, lacking
}

// tell returns the text of an error for people: without values of the plugin's environment, and
// without the names of directories, which differ each time.
func (s *suite) tell(err error) string {
	text := s.plugin.hide(err.Error())
	for _, dir := range s.dirs {
		text = strings.ReplaceAll(text, dir, "{dir}")
	}
	return text
}

// own notes err, which is not the plugin's, and returns it. The check then counts as not made,
// whatever else comes of it.
func (s *suite) own(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = cmp.Or(s.trouble, err)
	return err
}

// obstacle says why c cannot be made, or nothing.
func (s *suite) obstacle(c Check) string {
	if why, ok := s.conf.Skip[c.Name]; ok {
		return why
	}
	if c.Name != "version" && len(s.versions) == 0 {
		return `the check "version" has failed`
	}
	if s.added != nil && !slices.Contains([]string{"version", "add", "error", "error-version"}, c.Name) {
		return `no ADD succeeds: see the check "add"`
	}
	for _, name := range c.after {
		if cause := s.failed[name]; cause != "" {
			s.failed[c.Name] = cause
			return fmt.Sprintf("the check %q has failed", cause)
		}
	}
	if c.command != "" && !s.knows(c.command) {
		return fmt.Sprintf("%s is not in the versions that the plugin supports, %s", c.command, strings.Join(s.versions, ", "))
	}
	if c.real && !s.conf.NetNS {
		return needsContainers
	}
	if _, ok := s.plugin.(Program); ok && c.process {
		return "the plugin is not a process"
	}
	return ""
}

// knows reports whether a version that the plugin supports has the command.
func (s *suite) knows(command string) bool {
	since := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	return since == "" || slices.ContainsFunc(s.versions, func(v string) bool { return atLeast(v, since) })
}

// needsContainers says why a check is not made.
const needsContainers = "it needs real containers (NetNS)"

// A notRunError says what is missing to make a check of this plugin.
type notRunError struct{ missing string }

func (e *notRunError) Error() string { return e.missing }

func notRun(format string, args ...any) error {
	return &notRunError{fmt.Sprintf(format, args...)}
}

// one returns the first error, and how many more there are: they have the same cause.
func one(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more of this check)", errs[0], len(errs)-1)
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
	s.ends, s.dirs, s.trouble = nil, nil, nil
}

// bench returns a host on which nothing is attached.
func (s *suite) bench(ctx context.Context) (*bench, error) {
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		return nil, s.own(err)
	}
	s.atEnd(func() { _ = os.RemoveAll(dir) }) // it is temporary
	s.dirs = append(s.dirs, dir)
	b := &bench{suite: s, dir: dir, version: s.version, containers: make(map[string]*container)}
	if err := b.start(ctx); err != nil {
		return nil, s.own(err)
	}
	return b, nil
}

// attached returns a bench on which c1 has been attached, and the outcome of the
// ADD.
func (s *suite) attached(ctx context.Context) (*bench, outcome, error) {
	b, err := s.bench(ctx)
	if err != nil {
		return nil, outcome{}, err
	}
	o, err := b.add(ctx, "c1")
	return b, o, err
}

// add attaches a container.
func (b *bench) add(ctx context.Context, id string) (outcome, error) {
	o := b.call(ctx, delegatetest.Invocation{Command: "ADD", ContainerID: id})
	if err := o.failure(); err != nil {
		return o, fmt.Errorf("ADD of %s fails: %w", id, err)
	}
	return o, nil
}

// A trial is a check of a bench: on which c1 has been attached by the ADD that is given, or
// on which nothing has been attached.
type trial func(ctx context.Context, b *bench, added outcome) error

// onAttached returns a check that makes try after an ADD.
func onAttached(try trial) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		b, o, err := s.attached(ctx)
		if err != nil {
			return err
		}
		return try(ctx, b, o)
	}
}

// onNew is onAttached without the ADD.
func onNew(try trial) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		return try(ctx, b, outcome{})
	}
}

// onEach returns a check that makes try, on a bench of its own, for each of the delegates
// that command runs for one attachment. These are the k-th of n.
func onEach(command string, try func(ctx context.Context, s *suite, k, n int) error) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		n := 0
		if err := onAttached(func(ctx context.Context, b *bench, o outcome) error {
			if command != "ADD" {
				if err := b.call(ctx, b.later(command, o)).failure(); err != nil {
					return err
				}
			}
			if n = len(b.calls(command)); n == 0 {
				return fmt.Errorf("%s runs no delegate", command)
			}
			return nil
		})(ctx, s); err != nil {
			return err
		}
		var errs []error
		for k := 1; k <= n; k++ {
			errs = append(errs, try(ctx, s, k, n))
		}
		return one(errs...)
	}
}
