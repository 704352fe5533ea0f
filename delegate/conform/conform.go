// Package conform checks that a CNI plugin does what the specification asks of it, above all one
// that delegates to others. [Test] does so in a test, with a [Program] or an executable ([Binary]);
// [Findings] and the command in cmd/conform do so without one. Only [Config.NetNS] needs root;
// nothing needs a network.
//
// A program that imports this package and is started as the delegate of a Binary plays that
// delegate and exits before its main begins; see Binary.
package conform

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// TB is the part of *testing.T that [Test] uses. Ginkgo's GinkgoT has it too.
type TB interface {
	Context() context.Context
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Skip(args ...any)
}

// A Target is a plugin for [Test]: a [Program] or a [Binary].
type Target interface {
	// serve prepares calls of the plugin on b.
	serve(ctx context.Context, b *bench) (served, error)
	// name is the type of the plugin, or empty.
	name() string
	// hide returns text without values of the plugin's environment.
	hide(text string) string
}

// A served Target can be called.
type served struct {
	path string // CNI_PATH
	run  func(context.Context, delegatetest.Invocation) outcome
	stop func() // or nil
}

// A Config says how [Test] uses a plugin.
type Config struct {
	// Stdin returns a configuration with which the plugin runs all of Delegates:
	// the JSON object of one plugin, as a runtime passes it. Each call of Stdin is
	// for a new host, on which nothing has been attached. The directory dir of
	// that host is empty: Stdin can write files there that the plugin reads, and
	// the plugin can keep its state there. Test sets the cniVersion, and the
	// name if there is none. With a prevResult, the plugin counts as one for chains;
	// ADD gets it, converted to the version of the configuration, unless NetNS makes
	// real containers.
	Stdin func(dir string) string

	// Delegates are the types of the plugins that the plugin delegates to. Each
	// must run in an ADD. Test provides fakes, which attach nothing. Without
	// Delegates, there are no checks about them.
	Delegates []string

	// Idle are the types of more delegates, which need not run in an ADD. A plugin
	// that tries one alternative after another has the first in Delegates and the
	// rest here. With Idle, an ADD or a STATUS may succeed although a delegate
	// fails, unless all fail. ADD must still undo the one that failed.
	Idle []string

	// Fakes holds fakes for some of Delegates and Idle, by type, for a plugin that
	// needs a certain result; see [Result]. The others give an address of
	// 192.0.2.0/24 without a gateway. All hosts share a [Plugin] in Fakes.
	Fakes map[string]delegatetest.Fake

	// Args is more of CNI_ARGS, as "KEY=value;KEY=value".
	Args string

	// Kind is the kind of the plugin: "meta", "main", "chained", "ipam" or "shim".
	// Empty lets Test find out; see [Kind].
	Kind string

	// Strict adds the checks for guarantees of this module that the specification does
	// not give. A plugin that is written with package plugin passes them.
	Strict bool

	// NetNS makes real containers. Each check of a [Binary] then has a private host, with
	// a network namespace and an empty /run and /var/lib/cni, and looks at what the plugin
	// leaves there: interfaces, addresses, routes, firewall rules, files and processes. A
	// plugin for chains gets an interface, too. Without NetNS there is nothing at
	// CNI_NETNS: a plugin that makes interfaces cannot be attached.
	//
	// A [Program], and a shim without a [Binary.Daemon], get real containers on the host
	// of the test, where Test does not look at what is left.
	//
	// NetNS needs root, which may be that of a user namespace. Where namespaces cannot be
	// made, Test skips all checks.
	NetNS bool

	// Links are the names of interfaces that the plugin needs on its private host, such
	// as the master of a macvlan. Each host has eth0, with the default route.
	Links []string

	// Timeout is how long each command of the plugin may take. One that takes
	// longer is killed and counts as failed. Zero means a minute.
	Timeout time.Duration

	// Skip holds the reasons for not making some checks, by their names.
	Skip map[string]string
}

// Test checks that plugin does what the CNI specification (version 1.1,
// sections 2 to 5) asks of a plugin of its [Kind], above all of one that delegates to
// others. A failure says what the plugin does wrong, why that matters, and who asks
// for it.
//
// With a t that has subtests, such as a *testing.T, each check is one, by its
// name. Any other t, such as Ginkgo's GinkgoT, gets a single Errorf with all
// failures. One Logf lists the checks that were not made, and why. The checks are:
//
//	version             VERSION prints the supported versions
//	add                 ADD succeeds and runs every delegate
//	stdout              ADD prints one JSON document
//	request             delegates receive name, cniVersion and their own keys unchanged
//	environment         delegates receive the plugin's environment
//	stderr              delegates' stderr appears on the plugin's
//	result              ADD prints a result of the version asked for, with a delegate's address
//	interface           the interface is in the container, with its addresses, and in the result with its sandbox
//	ipam-result         ADD of an IPAM plugin prints addresses and no interfaces
//	chain               ADD prints what prevResult has, except for what it has removed
//	undo                an ADD whose delegate fails fails and leaves nothing
//	undo-killed         an ADD whose delegate is killed fails and leaves nothing
//	undo-garbage        an ADD whose delegate prints no JSON fails and leaves nothing
//	undo-silence        an ADD whose delegate prints nothing fails and leaves nothing
//	undo-two-documents  an ADD whose delegate prints two documents fails and leaves nothing
//	add-exists          ADD fails when the container has an interface of that name
//	error               a failure is reported as one JSON object with code and msg
//	error-version       the error object has the cniVersion of the configuration
//	version-unknown     ADD refuses a cniVersion that the plugin does not know, with code 1
//	add-broken          an ADD with a broken configuration fails cleanly, or prints a result
//	del                 DEL removes what ADD attached
//	del-again           DEL succeeds once more
//	del-bare            DEL works without CNI_NETNS, and up to CNI 0.4.0 without prevResult
//	del-unknown         DEL succeeds for what was never attached
//	del-failed          DEL succeeds after an ADD that failed, and leaves nothing
//	del-gone            DEL succeeds when the namespace is gone, and leaves nothing
//	del-broken          DEL works when the configuration was broken after the ADD
//	del-error           DEL fails when a delegate's DEL fails
//	del-retry           a repeated DEL removes the rest
//	ipam-unique         two containers get two addresses
//	ipam-release        DEL releases the address, and no other, also without CNI_NETNS
//	check-fresh         CHECK succeeds right after ADD
//	check               CHECK runs every delegate's CHECK, with prevResult
//	check-error         CHECK fails when a delegate's CHECK fails
//	check-gone          CHECK fails when what ADD made is gone
//	gc-quiet            GC succeeds and prints nothing
//	gc                  GC runs every delegate's GC
//	gc-error            GC fails when a delegate's GC fails, after running the others
//	gc-valid            GC keeps the valid attachments and passes them to delegates
//	gc-stale            GC removes the traces of a container that is gone, and keeps the others
//	status-ready        STATUS succeeds where ADD does
//	status              STATUS runs every delegate's STATUS
//	status-error        STATUS fails when a delegate's STATUS fails
//	ipam-gc             GC releases the addresses of containers that are gone, and keeps the others
//	ipam-full           STATUS fails when no address is left
//	code                the plugin fails with its delegate's error code
//	concurrent          ADD and DEL work for several containers at once
//	names               DEL of one interface leaves what the others of the container have, whatever they are called
//	versions            ADD and DEL work in every supported version
//
// A broken configuration is that of [Config] in one of these states: it has a
// key twice; one of its lists is empty, or a number; the objects that configure
// delegates are empty; the files that Stdin wrote are gone. The specification
// asks neither for del-broken nor for code: they are made with [Config.Strict].
//
// A plugin is not asked for the checks of other kinds, and one without delegates not
// for those about delegates. Test does not make a check when no supported version has
// the command, it needs real containers ([Config.NetNS]), [Config.Skip] has it, no ADD
// succeeds, or another check has failed that asks for a part of the same. It calls Skip
// only when the machine lacks something. When the plugin refuses the first ADD, "add" says
// what may be missing, and counts as failed: nothing else would show that hardly anything
// was checked.
//
// Test calls the plugin as a runtime does: one call after another, except in
// "concurrent". It writes to temporary directories only.
func Test[T TB](t T, plugin Target, conf Config) {
	t.Helper()
	s, err := newSuite(t.Context(), plugin, conf)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err.Error())
		return
	}
	if err != nil {
		t.Errorf("conform: %v", err)
		return
	}
	var failed []string
	tests, ok := any(t).(interface{ Run(string, func(T)) bool })
	for _, c := range Checks() {
		switch {
		case !s.has(c):
		case ok && s.obstacle(c) == "":
			tests.Run(c.Name, func(t T) {
				t.Helper()
				switch f, lacking := s.try(t.Context(), c); {
				case s.fails(f):
					t.Errorf("%v", f)
				case lacking:
					t.Skip(f.NotRun)
				}
			})
		default:
			if f := s.find(t.Context(), c); s.fails(f) {
				failed = append(failed, f.String())
			}
		}
	}
	if len(s.unmade) > 0 {
		t.Logf("not made:\n%s", strings.Join(s.unmade, "\n"))
	}
	if len(failed) > 0 {
		t.Errorf("%s", strings.Join(failed, "\n"))
	}
}

// fails reports whether f fails the test. That the first ADD lacked something does as well.
func (s *suite) fails(f Finding) bool { return f.Err != nil || f.NotRun != "" && f.NotRun == s.missing }

// A Finding is the outcome of one check.
type Finding struct {
	Check
	Err    error  // what the plugin does wrong; nil when it passes
	NotRun string // what is missing to make the check; empty when it was made
}

// String returns the name of the check and its outcome. Of a failure it says as
// well why it matters, and where that is written, in lines of their own.
func (f Finding) String() string {
	switch {
	case f.NotRun != "":
		return f.Name + ": not run: " + f.NotRun
	case f.Err != nil:
		return fmt.Sprintf("%s: %v\n\twhy: %s\n\tsee: %s", f.Name, f.Err, f.Why, f.Where)
	}
	return f.Name + ": passed"
}

// Findings makes the checks of [Test] without a test, each when the sequence
// arrives at it, and says first what it takes the plugin for. It returns an error, and
// no sequence, when conf is not usable or the plugin's surroundings cannot be made, and
// an [errors.ErrUnsupported] when real containers cannot. Range over the sequence once.
func Findings(ctx context.Context, plugin Target, conf Config) (Kind, iter.Seq[Finding], error) {
	s, err := newSuite(ctx, plugin, conf)
	if err != nil {
		return Kind{}, nil, err
	}
	return s.kind, s.checks(ctx), nil
}
