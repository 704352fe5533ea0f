package delegatetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// ifnames are names of interfaces that the kernel accepts. Some have a special meaning in the languages
// of other programs. The last one is as long as a name can be: with a prefix it is too long.
func ifnames() []string { return []string{"e", "e#0", "a;b", `"$(x)*`, "abcdefghijklmno"} }

// checkNames is not about a chained plugin that takes all interfaces of a container for one, such as
// portmap: it is made for one of them, and ordinary names show that as well.
func checkNames(ctx context.Context, s *suite) error {
	err := onNew(apart(ifnames()))(ctx, s)
	if err != nil && s.kind.Name == kindChained && onNew(apart([]string{"e", "f"}))(ctx, s) != nil {
		return notRun("the plugin takes two interfaces of a container for one, whatever they are called")
	}
	return err
}

// apart attaches one container several times, and wants each DEL, and each ADD that fails, to leave
// what the other attachments have.
func apart(names []string) trial {
	return func(ctx context.Context, b *bench, _ Outcome) error { return b.apart(ctx, names) }
}

func (b *bench) apart(ctx context.Context, names []string) error {
	if b.ifname == loopback {
		return notRun("each container has the interface %s", loopback)
	}
	type attachment struct {
		ifname string
		added  Outcome
		has    []string // what its ADD has made
	}
	var all []attachment
	there, err := b.things(ctx, names)
	if err != nil {
		return err
	}
	// step makes a call for one attachment and returns the things that the call has made. It fails if
	// a thing is gone that is not in own.
	step := func(what string, c Call, own []string) (Outcome, []string, error) {
		o := b.call(ctx, c)
		now, err := b.things(ctx, names)
		if err != nil {
			return o, nil, err
		}
		lost := slices.DeleteFunc(without(there, now), func(line string) bool { return slices.Contains(own, line) || b.addedTwice(line) })
		made := without(now, there)
		there = now
		if len(lost) > 0 {
			return o, nil, fmt.Errorf("%s removes what other interfaces of the container have: %s", what, list(lost))
		}
		return o, made, nil
	}
	for i, name := range names {
		o, made, err := step(fmt.Sprintf("ADD of %q", name), Call{Command: "ADD", IfName: name}, nil)
		if err == nil && o.Status != 0 {
			_, _, err = step(fmt.Sprintf("DEL of %q, whose ADD has failed,", name), Call{Command: "DEL", IfName: name}, made)
			if i == 0 {
				return cmp.Or(err, notRun("the plugin attaches no interface with the name %q", name))
			}
		} else {
			all = append(all, attachment{name, o, made})
		}
		if err != nil {
			return err
		}
	}
	for i, a := range slices.Backward(all) {
		del := b.later("DEL", a.added)
		del.IfName = a.ifname
		if _, _, err := step(fmt.Sprintf("DEL of %q", a.ifname), del, a.has); err != nil {
			return err
		}
		for _, other := range all[:i] {
			check := b.later("CHECK", other.added)
			check.IfName = other.ifname
			if !b.knows("CHECK") || b.failed["check-fresh"] != "" {
				continue
			}
			if err := b.call(ctx, check).failure(); err != nil {
				return fmt.Errorf("after DEL of %q, CHECK of %q in the same container fails: %w", a.ifname, other.ifname, err)
			}
		}
	}
	return nil
}

// things returns what c1 and its attachments have.
func (b *bench) things(ctx context.Context, names []string) ([]string, error) {
	c, err := b.container("c1")
	if err != nil {
		return nil, err
	}
	all := b.exec.Live()
	host, err := b.state(ctx)
	if err != nil {
		return nil, err
	}
	all = append(all, host.Since(b.idle)...)
	for _, name := range names {
		if !b.chained && c.has(name) {
			all = append(all, fmt.Sprintf("interface %q in the container", name))
		}
	}
	return all, nil
}

// addedTwice reports whether a delegate was told to make an attachment that was there. Without real
// containers nothing keeps a plugin from adding it twice, so that its owner is not known.
func (b *bench) addedTwice(attachment string) bool {
	adds := slices.DeleteFunc(b.calls("ADD"), func(c Call) bool { return c.attachment() != attachment })
	return len(adds) > 1
}

// without returns the lines of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}
