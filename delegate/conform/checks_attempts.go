package conform

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// An attempt is an ADD, which may fail. When its DEL has run, all else must be as before.
type attempt struct {
	what string
	// prepare returns the ADD, for a bench on which it has prepared the rest.
	prepare func(context.Context, *bench) (delegatetest.Invocation, error)
	// broken says that the configuration is broken, so that DEL may fail as well.
	broken bool
	// after looks at more, when the DEL has run. Without it the ADD must fail: one that
	// succeeds is for other checks.
	after func(ctx context.Context, b *bench, added outcome) error
}

// half is a part of a configuration.
func half() []byte { return []byte(`{"cniVersion":`) }

// unknown returns an ADD whose configuration is of an unknown version.
func unknown(version string) func(context.Context, *bench) (delegatetest.Invocation, error) {
	return func(_ context.Context, b *bench) (delegatetest.Invocation, error) {
		stdin, err := b.adding(b.c1, b.ifname, map[string]any{"cniVersion": version})
		return delegatetest.Invocation{Command: "ADD", Stdin: stdin}, err
	}
}

// failingADDs returns the ways in which an ADD can be made to fail.
func (s *suite) failingADDs(ctx context.Context) ([]attempt, error) {
	always := func(c delegatetest.Invocation) func(context.Context, *bench) (delegatetest.Invocation, error) {
		c.Command = "ADD"
		return func(context.Context, *bench) (delegatetest.Invocation, error) { return c, nil }
	}
	all := []attempt{
		{what: "without CNI_IFNAME", prepare: always(delegatetest.Invocation{IfName: none})},
		{what: "with half a configuration", prepare: always(delegatetest.Invocation{Stdin: half()})},
		{what: "whose configuration is of an unknown version", prepare: unknown("99.0.0")},
	}
	if len(s.conf.Delegates) > 0 {
		for _, fault := range []struct {
			what  string
			wrong func(string, delegatetest.Fake) delegatetest.Fake
		}{{"fails", failing}, {"is killed", delegatetest.KillOn}, {"prints no JSON", delegatetest.GarbageOn}, {"prints nothing", silent}, {"prints two documents", twice}} {
			all = append(all, attempt{what: "whose delegate " + fault.what, prepare: func(_ context.Context, b *bench) (delegatetest.Invocation, error) {
				b.fault("ADD", b.fatal(), fault.wrong)
				return delegatetest.Invocation{Command: "ADD"}, nil
			}})
		}
	}
	if s.kind.Name == kindMain && s.conf.NetNS && s.ifname != loopback {
		all = append(all, attempt{what: "in a container that has the interface", prepare: func(_ context.Context, b *bench) (delegatetest.Invocation, error) {
			_, err := b.node.Attach(b.c1.path, b.ifname)
			return delegatetest.Invocation{Command: "ADD"}, b.own(err)
		}})
	}
	if s.kind.Name == kindIPAM || len(s.conf.Links) > 0 {
		all = append(all, attempt{what: "for which nothing is left", prepare: func(ctx context.Context, b *bench) (delegatetest.Invocation, error) {
			for i := range pool {
				c := delegatetest.Invocation{Command: "ADD", ContainerID: fmt.Sprint("c", i+1)}
				o := b.call(ctx, c)
				if o.Status != 0 { // it fails again
					b.call(ctx, delegatetest.Invocation{Command: "DEL", ContainerID: c.ContainerID})
					return c, nil
				}
			}
			return delegatetest.Invocation{}, errors.ErrUnsupported // there is more
		}})
	}
	b, err := s.bench(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range b.damages() {
		all = append(all, attempt{"whose configuration " + d.what, func(_ context.Context, b *bench) (delegatetest.Invocation, error) {
			d.do(b)
			return delegatetest.Invocation{Command: "ADD"}, nil
		}, true, nil})
	}
	return all, nil
}

// checkDelFailed makes an ADD fail in each way.
func checkDelFailed(ctx context.Context, s *suite) error {
	all, err := s.failingADDs(ctx)
	if err != nil {
		return err
	}
	return s.restored(ctx, all...)
}

// checkNames attaches one interface beside another whose name is like its own for a program that
// takes a part of a name for a comment, a command or a pattern, or cuts off its end.
func checkNames(ctx context.Context, s *suite) error {
	if s.ifname == loopback {
		return notRun("each container has the interface %s", loopback)
	}
	err := s.restored(ctx,
		beside("e", "e#0"), beside("e#0", "e"), beside("e", "e;b"), beside("a;b", "a"), beside("e", `e"$(x)`), beside("ef", "e*"),
		beside("abcdefghijklmno", "abcdefghijklmnx"))
	// portmap and others take all interfaces of a container for one.
	if err != nil && s.kind.Name == kindChained && s.restored(ctx, beside("e", "f")) != nil {
		return notRun("the plugin takes two interfaces of a container for one, whatever they are called")
	}
	return err
}

// beside returns the attempt to attach an interface to a container that has another one.
func beside(other, ifname string) attempt {
	var first outcome
	had := false
	return attempt{
		what: fmt.Sprintf("of %q in a container with %q", ifname, other),
		prepare: func(ctx context.Context, b *bench) (delegatetest.Invocation, error) {
			if _, err := b.before(b.c1, ifname); err != nil { // made by another plugin
				return delegatetest.Invocation{}, err
			}
			if first = b.call(ctx, delegatetest.Invocation{Command: "ADD", IfName: other}); first.Status != 0 {
				return delegatetest.Invocation{}, notRun("the plugin attaches no interface with the name %q", other)
			}
			had = b.c1.has(other)
			return delegatetest.Invocation{Command: "ADD", IfName: ifname}, nil
		},
		after: func(ctx context.Context, b *bench, second outcome) error {
			if had && !b.c1.has(other) {
				return fmt.Errorf("the interface %q is gone", other)
			}
			if ip := shared([]outcome{first, second}); ip != "" && b.kind.Name == kindIPAM && b.stated(first) == nil {
				return fmt.Errorf("both get %s", ip)
			}
			check := b.later("CHECK", first)
			if check.IfName = other; !b.knows("CHECK") || b.failed["check-fresh"] != "" {
				return nil
			}
			return b.succeeds(ctx, fmt.Sprintf("the CHECK of %q", other), check)
		},
	}
}

// restored fails unless the DEL after each of these ADDs leaves the host and the container as they were
// before the ADD. The check is not made if none of the ADDs can be.
func (s *suite) restored(ctx context.Context, all ...attempt) error {
	var made, not []error
	for _, a := range all {
		err := onNew(func(ctx context.Context, b *bench, _ outcome) error { return b.restored(ctx, a) })(ctx, s)
		if errors.As(err, new(*notRunError)) {
			not = append(not, err)
		} else {
			made = append(made, err)
		}
	}
	if len(made) == 0 && len(not) > 0 {
		return not[0]
	}
	return one(made...)
}

func (b *bench) restored(ctx context.Context, a attempt) error {
	c, err := a.prepare(ctx, b)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	before, live := b.state(ctx), b.exec.Live()
	added := b.call(ctx, c)
	del := of(c.ContainerID, b.later("DEL", added))
	if c.IfName != none {
		del.IfName = c.IfName
	}
	err = b.call(ctx, del).failure()
	if a.after == nil && added.Status == 0 || added.late || err != nil && a.broken {
		return nil
	}
	what := "the DEL after an ADD " + a.what
	if err != nil {
		return fmt.Errorf("%s fails: %w", what, err)
	}
	now := b.state(ctx)
	gone := slices.DeleteFunc(before.Since(now), func(line string) bool { return strings.HasPrefix(line, "process ") })
	if lost := slices.Concat(b.without(live, b.exec.Live(), a), gone); len(lost) > 0 {
		return fmt.Errorf("%s, or that ADD, removes what was there before: %s", what, list(lost))
	}
	if left := b.without(b.exec.Live(), live, a); len(left) > 0 {
		return fmt.Errorf("%s leaves behind %q: delegates ran as %q", what, left, b.exec.Trace())
	}
	if err := b.noMore(ctx, what, before); err != nil || a.after == nil {
		return err
	}
	if err := a.after(ctx, b, added); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	return nil
}

// without returns the attachments that are not among others. Where an ADD comes beside another one, it
// leaves out those that a delegate was told to make twice: the fakes, unlike a real container, let that
// happen, and nobody owns them.
func (b *bench) without(attachments, others []string, beside attempt) []string {
	adds := b.calls("ADD")
	return slices.DeleteFunc(slices.Clone(attachments), func(a string) bool {
		twice := slices.DeleteFunc(slices.Clone(adds), func(c delegatetest.Invocation) bool { return attachment(c) != a })
		return beside.after != nil && len(twice) > 1 || slices.Contains(others, a)
	})
}

// checkVersionUnknown wants the error code that the specification has for a version, whether that is newer
// than all or between two.
func checkVersionUnknown(ctx context.Context, s *suite) error {
	var errs []error
	for _, version := range []string{"99.0.0", "9.9.9", "0.9.0"} {
		errs = append(errs, onNew(func(ctx context.Context, b *bench, _ outcome) error {
			c, err := unknown(version)(ctx, b)
			if err != nil {
				return err
			}
			what := "an ADD whose configuration has cniVersion " + version
			o := b.call(ctx, c)
			if o.Status == 0 {
				b.call(ctx, delegatetest.Invocation{Command: "DEL"})
				return fmt.Errorf("%s succeeds", what)
			}
			said := (*types.Error)(nil)
			if err := o.Err(); !errors.As(err, &said) || said.Code != types.ErrIncompatibleCNIVersion {
				return fmt.Errorf("%s fails, and not with code %d: %w", what, types.ErrIncompatibleCNIVersion, bounded(err))
			}
			return nil
		})(ctx, s))
	}
	return one(errs...)
}
