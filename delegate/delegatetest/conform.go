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
	// run in an ADD. They are fakes, which attach nothing. With none, the checks
	// that are about delegates are skipped.
	Delegates []string

	// Idle are the types of more plugins that Stdin names, which need not run in
	// an ADD: a plugin that tries one alternative after another has its first
	// in Delegates and the rest here. With Idle, an ADD or a STATUS may
	// succeed although a delegate fails, unless all fail. An ADD must then still
	// undo what failed.
	Idle []string

	// Fakes holds the fakes of Delegates and Idle, by type, where the plugin
	// needs a certain result; see [Result]. Any other gives an address of
	// 192.0.2.0/24, without a gateway. A [Plugin] here is shared by all hosts.
	Fakes map[string]Plugin

	// NetNS returns CNI_NETNS for a container of one of the hosts. It is called
	// once for each, with the directory that Stdin gets and the container's ID.
	// Remove, unless nil, is called when the host is not used any more. A plugin
	// that makes interfaces needs [NewNetNS] here. Nil means paths at which there
	// is nothing, for plugins that do not look into the namespace.
	//
	// When the error is an [errors.ErrUnsupported], all checks are skipped.
	NetNS func(dir, containerID string) (path string, remove func(), err error)

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
//	add-broken          an ADD with a broken configuration fails and leaves
//	                    nothing, or succeeds and prints a result
//	error               a failure is told in one JSON object with code and msg
//	error-version       and with cniVersion, which skel.PluginMainFuncs leaves out
//	code                the delegate's error code is the plugin's
//	del                 DEL removes what ADD attached
//	del-again           and succeeds once more
//	del-unknown         and for what was never attached
//	del-failed          and after an ADD that failed
//	del-bare            and without CNI_NETNS and prevResult
//	del-broken          and when the configuration has been broken since the ADD
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
// A broken configuration is that of [Config] in one of these states: it has a
// key twice; one of its lists is empty, or a number; the objects that configure delegates are
// empty; the files that Stdin wrote are gone. The specification does not ask for
// del-broken: a runtime repeats the configuration of the ADD. But people edit
// configurations, and only a plugin that records what it attached can still
// remove it.
//
// A check is skipped, with the reason, when it cannot be made: no supported
// version has the command, a [Program] has no stderr, the version check has
// failed, or the first ADD has failed and the check needs one that works. The
// plugin is called as by a runtime: one call after another, except in the last
// check. Conform writes to temporary directories only.
func Conform[S TB[S]](t S, plugin Target, conf Config) {
	t.Helper()
	all := checks()
	for _, name := range slices.Sorted(maps.Keys(conf.Skip)) {
		if !slices.ContainsFunc(all, func(c check) bool { return c.name == name }) {
			t.Errorf("delegatetest: there is no check %q to skip", name)
		}
	}
	s := &suite{plugin: plugin, conf: conf}
	if err := s.prepare(t.Context()); errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err.Error())
		return
	} else if err != nil {
		t.Errorf("delegatetest: %v", err)
		return
	}
	for i, c := range all {
		t.Run(c.name, func(t S) {
			t.Helper()
			if why, ok := conf.Skip[c.name]; ok {
				t.Skip(why)
				return
			}
			if i > 0 && len(s.versions) == 0 {
				t.Skip("VERSION names no version of CNI: see the check \"version\"")
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
	tried     bool     // whether ADD has been tried
	broken    bool     // whether that failed
	open      []*bench
}

// prepare asks for the plugin's versions.
func (s *suite) prepare(ctx context.Context) error {
	if s.conf.Stdin == nil {
		return errors.New("a Config needs Stdin")
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

// clear ends what the checks have opened.
func (s *suite) clear() {
	for _, b := range s.open {
		b.host.stop()
		for _, n := range b.spaces {
			if n.remove != nil {
				n.remove()
			}
		}
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

// works fails if there is no ADD to be had.
func (s *suite) works() error {
	if s.broken {
		return &skipError{"the first ADD has failed, and this check needs one that works"}
	}
	return nil
}

// count is how many calls of command an attachment takes.
func (s *suite) count(ctx context.Context, command string) (int, error) {
	if err := s.delegates(); err != nil {
		return 0, err
	}
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

// delegates fails unless there are some.
func (s *suite) delegates() error {
	if len(s.conf.Delegates) == 0 {
		return &skipError{"the plugin has no delegates"}
	}
	return nil
}
