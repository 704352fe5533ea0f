package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// TB is the part of *testing.T that [Conform] uses. Ginkgo's GinkgoT has it too.
type TB interface {
	Context() context.Context
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Skip(args ...any)
}

// A Target is a plugin for [Conform]: a [Program] or a [Binary].
type Target interface {
	// serve prepares calls of the plugin. Its delegates are the plugins of x, and
	// dir is a directory to write to.
	serve(ctx context.Context, x *Exec, dir string) (host, error)
}

// A host is where a Target runs.
type host struct {
	path string // CNI_PATH
	real bool   // the plugin and its delegates are processes
	run  func(context.Context, Call) Outcome
	stop func() // or nil
}

// A Config says how [Conform] uses a plugin.
type Config struct {
	// Stdin returns a configuration with which the plugin runs all of Delegates:
	// the JSON object of one plugin, as a runtime passes it. Each call of Stdin is
	// for a new host, on which nothing has been attached. The directory dir of
	// that host is empty: Stdin can write files there that the plugin reads, and
	// the plugin can keep its state there. Conform sets the cniVersion, and the
	// name if there is none. A plugin that only runs after others in a chain needs
	// a prevResult: ADD gets it, converted to the version of the configuration.
	Stdin func(dir string) string

	// Delegates are the types of the plugins that the plugin delegates to. Each
	// must run in an ADD. Conform provides fakes, which attach nothing. Without
	// Delegates, Conform skips the checks that are about them.
	Delegates []string

	// Idle are the types of more delegates, which need not run in an ADD. A plugin
	// that tries one alternative after another has the first in Delegates and the
	// rest here. With Idle, an ADD or a STATUS may succeed although a delegate
	// fails, unless all fail. ADD must still undo the one that failed.
	Idle []string

	// Fakes holds fakes for some of Delegates and Idle, by type, for a plugin that
	// needs a certain result; see [Result]. The others give an address of
	// 192.0.2.0/24 without a gateway. All hosts share a [Plugin] in Fakes.
	Fakes map[string]Plugin

	// NetNS returns CNI_NETNS for a container. Conform calls it once for each
	// container of each host, with the host's dir and the container's ID. It calls
	// remove, unless nil, when it no longer needs the host. A plugin that makes
	// interfaces needs [NewNetNS] here. With a nil NetNS there is nothing at
	// CNI_NETNS, for plugins that do not look into the namespace.
	//
	// When the error is an [errors.ErrUnsupported], Conform skips all checks.
	NetNS func(dir, containerID string) (path string, remove func(), err error)

	// Timeout is how long each command of the plugin may take. One that takes
	// longer is killed and counts as failed. Zero means a minute.
	Timeout time.Duration

	// Skip holds the reasons for not making some checks, by their names.
	Skip map[string]string
}

// Conform checks that plugin does what the CNI specification (version 1.1,
// sections 2 to 5) asks of a plugin that delegates to others. A failure says what
// the plugin does wrong, why that matters, and who asks for it.
//
// With a t that has subtests, such as a *testing.T, each check is one, by its
// name. Any other t, such as Ginkgo's GinkgoT, gets a single Errorf with all
// failures, and one Logf for each check that is skipped. The checks are:
//
//	version             VERSION prints the supported versions
//	add                 ADD succeeds and runs every delegate
//	stdout              ADD prints one JSON document
//	result              ADD prints a result of the version asked for, with a delegate's address
//	versions            ADD and DEL work in every supported version
//	chain               ADD with a prevResult prints the interfaces and addresses of that, too
//	request             delegates receive name, cniVersion and their own keys unchanged
//	environment         delegates receive the plugin's environment
//	stderr              delegates' stderr appears on the plugin's
//	undo                an ADD whose delegate fails fails and leaves nothing
//	undo-killed         an ADD whose delegate is killed fails and leaves nothing
//	undo-garbage        an ADD whose delegate prints no JSON fails and leaves nothing
//	undo-silence        an ADD whose delegate prints nothing fails and leaves nothing
//	undo-two-documents  an ADD whose delegate prints two documents fails and leaves nothing
//	add-broken          an ADD with a broken configuration fails cleanly, or prints a result
//	error               a failure is reported as one JSON object with code and msg
//	error-version       the error object has the cniVersion of the configuration
//	code                the plugin fails with its delegate's error code
//	del                 DEL removes what ADD attached
//	del-again           DEL succeeds once more
//	del-unknown         DEL succeeds for what was never attached
//	del-failed          DEL succeeds after an ADD that failed
//	del-bare            DEL works without CNI_NETNS and prevResult
//	del-broken          DEL works when the configuration was broken after the ADD
//	del-error           DEL fails when a delegate's DEL fails
//	del-retry           a repeated DEL removes the rest
//	check               CHECK runs every delegate's CHECK, with prevResult
//	check-error         CHECK fails when a delegate's CHECK fails
//	gc                  GC runs every delegate's GC and prints nothing
//	gc-error            GC fails when a delegate's GC fails, after running the others
//	gc-valid            GC keeps the valid attachments and passes them to delegates
//	status              STATUS runs every delegate's STATUS
//	status-error        STATUS fails when a delegate's STATUS fails
//	concurrent          ADD and DEL work for several containers at once
//
// A broken configuration is that of [Config] in one of these states: it has a
// key twice; one of its lists is empty, or a number; the objects that configure
// delegates are empty; the files that Stdin wrote are gone. The specification
// does not ask for del-broken: a runtime repeats the configuration of the ADD.
// But people edit configurations, and only a plugin that records what it attached
// can still remove it.
//
// Conform skips a check, and says why, when it cannot make it: no supported
// version has the command, a [Program] has no stderr, the check "version" has
// failed, or the first ADD has failed and the check needs one that works. It calls
// the plugin as a runtime does: one call after another, except in the last check.
// It writes to temporary directories only.
func Conform[T TB](t T, plugin Target, conf Config) {
	t.Helper()
	s, err := newSuite(t.Context(), plugin, conf)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err.Error())
		return
	}
	if err != nil {
		t.Errorf("delegatetest: %v", err)
		return
	}
	if tests, ok := any(t).(interface{ Run(string, func(T)) bool }); ok {
		for _, c := range Checks() {
			tests.Run(c.Name, func(t T) {
				t.Helper()
				switch f := s.find(t.Context(), c); {
				case f.Skipped != "":
					t.Skip(f.Skipped)
				case f.Err != nil:
					t.Errorf("%v", f)
				}
			})
		}
		return
	}
	var failed []string
	for _, c := range Checks() {
		switch f := s.find(t.Context(), c); {
		case f.Skipped != "":
			t.Logf("%v", f)
		case f.Err != nil:
			failed = append(failed, f.String())
		}
	}
	if len(failed) > 0 {
		t.Errorf("%s", strings.Join(failed, "\n"))
	}
}

// A Finding is the outcome of one check.
type Finding struct {
	Check
	Err     error  // what the plugin does wrong; nil when it passes
	Skipped string // why the check was not made; empty when it was
}

// String returns the name of the check and its outcome. Of a failure it says as
// well why it matters, and where that is written, in lines of their own.
func (f Finding) String() string {
	switch {
	case f.Skipped != "":
		return f.Name + ": skipped: " + f.Skipped
	case f.Err != nil:
		return fmt.Sprintf("%s: %v\n\twhy: %s\n\tsee: %s", f.Name, f.Err, f.Why, f.Where)
	}
	return f.Name + ": passed"
}

// Findings makes the checks of [Conform] without a test, each when the sequence
// arrives at it. It returns an error, and no sequence, when conf is not usable or
// the plugin's surroundings cannot be made, and an [errors.ErrUnsupported] where
// [Config.NetNS] does. Range over the sequence once.
func Findings(ctx context.Context, plugin Target, conf Config) (iter.Seq[Finding], error) {
	s, err := newSuite(ctx, plugin, conf)
	if err != nil {
		return nil, err
	}
	return func(yield func(Finding) bool) {
		for _, c := range Checks() {
			if !yield(s.find(ctx, c)) {
				return
			}
		}
	}, nil
}
