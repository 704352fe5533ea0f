package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// TB is what [Conform] wants of a *testing.T, without this package having to
// import testing: S is the type itself.
type TB[S any] interface {
	Context() context.Context
	Helper()
	Errorf(format string, args ...any)
	Skip(args ...any)
	Run(name string, f func(S)) bool
}

// A Target is a plugin for [Conform]: a [Program] or a [Binary].
type Target interface {
	// serve makes ready for calls that delegate to the plugins of x, with
	// dir to write to.
	serve(ctx context.Context, x *Exec, dir string) (host, error)
}

// A host is where a Target runs.
type host struct {
	path string // CNI_PATH
	real bool   // the plugin and its delegates are processes
	run  func(context.Context, Call) Outcome
	stop func()
}

// A Config says how [Conform] is to use a plugin.
type Config struct {
	// Stdin returns a configuration with which the plugin delegates to all of
	// Delegates: the JSON object of one plugin, as a runtime would pass it.
	// Each time it is for a new host, on which nothing has been attached; what
	// the plugin writes, or what else it reads, can be in the directory dir,
	// which is empty. The cniVersion is set by Conform, and the name where
	// there is none.
	Stdin func(dir string) string

	// Delegates are the types of the plugins that are delegated to. Each must
	// run in an ADD. They are fakes, which attach nothing.
	Delegates []string

	// NetNS is CNI_NETNS. Empty is a path at which there is nothing: that does
	// when the plugin itself does not look into the namespace.
	NetNS string

	// Skip holds the checks that are not for this plugin, by name, and why.
	Skip map[string]string
}

// Conform checks that plugin does what the CNI specification (version 1.1,
// sections 2 to 5) wants of a plugin that delegates to others. Every check is a
// test of its own below t, with a name that stays:
//
//	version             VERSION prints the versions that are supported
//	add                 ADD succeeds, and runs every delegate
//	stdout              what ADD prints is one JSON document
//	result              which is a result, in the version of the configuration,
//	                    with an address that a delegate gave
//	versions            ADD and DEL work in every version that is supported
//	request             delegates receive a name, a cniVersion, and the keys of
//	                    their configuration that nobody else knows, as they were
//	environment         delegates receive the plugin's environment
//	stderr              what delegates write to stderr is on the plugin's
//	undo                an ADD whose delegate fails fails, and leaves nothing,
//	                    neither of that delegate nor of those before
//	undo-killed         so does one whose delegate dies
//	undo-garbage        or prints what is not JSON
//	undo-silence        or prints nothing
//	undo-two-documents  or prints two documents
//	error               a failure is told in one JSON object with code and msg
//	error-version       and with cniVersion, which skel.PluginMainFuncs leaves out
//	code                the delegate's error code is the plugin's
//	del                 DEL removes what ADD attached
//	del-again           and succeeds once more
//	del-unknown         and for what was never attached
//	del-failed          and after an ADD that failed
//	del-bare            and without CNI_NETNS and prevResult
//	del-error           DEL fails when a delegate's does
//	del-retry           and then removes the rest when it is repeated
//	check               CHECK runs every delegate's, with prevResult
//	check-error         and fails when one does
//	gc                  GC runs every delegate's, and prints nothing
//	gc-error            and fails when one does, having run the others
//	gc-valid            GC keeps the valid attachments, and delegates know them
//	status              STATUS runs every delegate's
//	status-error        and fails when one does
//	concurrent          ADD and DEL work for several containers at once
//
// Checks of commands that no supported version has are skipped, that of stderr
// for a [Program], which has none, and all others
// after a version that fails. The plugin is
// called as by a runtime, in order but for the last check. Nothing is written
// but to a temporary directory.
func Conform[S TB[S]](t S, plugin Target, conf Config) {
	t.Helper()
	all := checks()
	for _, name := range slices.Sorted(maps.Keys(conf.Skip)) {
		if !slices.ContainsFunc(all, func(c check) bool { return c.name == name }) {
			t.Errorf("delegatetest: there is no check %q to skip", name)
		}
	}
	s := &suite{plugin: plugin, conf: conf}
	if err := s.prepare(t.Context()); err != nil {
		t.Errorf("delegatetest: %v", err)
		return
	}
	if len(s.versions) == 0 {
		all = all[:1] // which says why there is no other
	}
	for _, c := range all {
		t.Run(c.name, func(t S) {
			t.Helper()
			if why, ok := conf.Skip[c.name]; ok {
				t.Skip(why)
				return
			}
			defer s.clear()
			err := c.do(t.Context(), s)
			if why := (*skipError)(nil); errors.As(err, &why) {
				t.Skip(why.Error())
				return
			}
			if err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}

// A check is one duty of a plugin. It returns what the plugin does wrong.
type check struct {
	name string
	do   func(context.Context, *suite) error
}

// A skipError is the error of a check that is not for this plugin.
type skipError struct{ why string }

func (e *skipError) Error() string { return e.why }

// A suite is one Conform.
type suite struct {
	plugin    Target
	conf      Config
	versions  []string // that the plugin supports, of those known here
	version   string   // the newest of them
	supported Outcome  // of VERSION
	open      []*bench
}

// prepare asks for the plugin's versions.
func (s *suite) prepare(ctx context.Context) error {
	if s.conf.Stdin == nil || len(s.conf.Delegates) == 0 {
		return errors.New("a Config needs Stdin and Delegates")
	}
	defer s.clear()
	b, err := s.bench(ctx)
	if err != nil {
		return err
	}
	s.supported = b.call(ctx, Call{Command: "VERSION"})
	if s.versions = known(s.supported); len(s.versions) > 0 {
		s.version = s.versions[len(s.versions)-1]
	}
	return nil
}

// clear ends what the checks have opened.
func (s *suite) clear() {
	for _, b := range s.open {
		b.host.stop()
		_ = os.RemoveAll(b.dir) // it is temporary
	}
	s.open = nil
}

// bench is a host on which nothing has been attached.
func (s *suite) bench(ctx context.Context) (*bench, error) {
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		return nil, err
	}
	b := &bench{suite: s, dir: dir, version: s.version, host: host{stop: func() {}}}
	s.open = append(s.open, b)
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// attached is a bench on which c1 has been attached, with the result of that.
func (s *suite) attached(ctx context.Context) (*bench, Outcome, error) {
	b, err := s.bench(ctx)
	if err != nil {
		return nil, Outcome{}, err
	}
	o := b.call(ctx, Call{Command: "ADD"})
	if err := o.Err(); err != nil {
		return nil, o, fmt.Errorf("ADD fails: %w", err)
	}
	return b, o, nil
}

// count is how many calls of command an attachment takes.
func (s *suite) count(ctx context.Context, command string) (int, error) {
	b, o, err := s.attached(ctx)
	if err == nil && command != "ADD" {
		err = b.call(ctx, b.later(command, o)).Err()
	}
	if err != nil {
		return 0, err
	}
	n := len(b.calls(command))
	if n == 0 {
		return 0, fmt.Errorf("%s runs no delegate", command)
	}
	return n, nil
}

// needs fails unless a supported version has command.
func (s *suite) needs(command string) error {
	since := map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	if since == "" || slices.ContainsFunc(s.versions, func(v string) bool { return atLeast(v, since) }) {
		return nil
	}
	return &skipError{fmt.Sprintf("the plugin supports no version that has %s, but %q", command, s.versions)}
}
