package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// A failing ADD is one that a suite makes fail, or that a plugin may refuse.
type failingADD struct {
	what string
	// prepare returns the ADD, for a bench on which it has prepared the rest.
	prepare func(context.Context, *bench) (Call, error)
	// broken says that the configuration is broken, so that DEL may fail as well.
	broken bool
}

// half is a part of a configuration.
func half() []byte { return []byte(`{"cniVersion":`) }

// unknownVersion is no version of the specification.
const unknownVersion = "99.0.0"

// unknown returns an ADD whose configuration is of an unknown version.
func unknown(_ context.Context, b *bench) (Call, error) {
	in, err := b.container("c1")
	if err != nil {
		return Call{}, err
	}
	stdin, err := b.adding(in, b.ifname, map[string]any{"cniVersion": unknownVersion})
	return Call{Command: "ADD", Stdin: stdin}, err
}

// failingADDs returns the ways in which an ADD can be made to fail.
func (s *suite) failingADDs(ctx context.Context) ([]failingADD, error) {
	always := func(c Call) func(context.Context, *bench) (Call, error) {
		c.Command = "ADD"
		return func(context.Context, *bench) (Call, error) { return c, nil }
	}
	all := []failingADD{
		{what: "without CNI_IFNAME", prepare: always(Call{IfName: none})},
		{what: "with half a configuration", prepare: always(Call{Stdin: half()})},
		{what: "whose configuration is of an unknown version", prepare: unknown},
	}
	if len(s.conf.Delegates) > 0 {
		for _, fault := range []struct {
			what  string
			wrong func(string, Plugin) Plugin
		}{{"fails", failing}, {"is killed", KillOn}, {"prints no JSON", GarbageOn}, {"prints nothing", silentOn}, {"prints two documents", twiceOn}} {
			all = append(all, failingADD{what: "whose delegate " + fault.what, prepare: func(_ context.Context, b *bench) (Call, error) {
				b.fault("ADD", b.fatal(), fault.wrong)
				return Call{Command: "ADD"}, nil
			}})
		}
	}
	if s.kind.Name == kindMain && s.conf.NetNS && s.ifname != loopback {
		all = append(all, failingADD{what: "in a container that has the interface", prepare: func(_ context.Context, b *bench) (Call, error) {
			c, err := b.container("c1")
			if err == nil {
				_, err = c.real.Attach(b.ifname)
			}
			if err != nil {
				err = b.own(err)
			}
			return Call{Command: "ADD"}, err
		}})
	}
	if s.kind.Name == kindIPAM || len(s.conf.Links) > 0 {
		all = append(all, failingADD{what: "for which nothing is left", prepare: func(ctx context.Context, b *bench) (Call, error) {
			for i := range pool {
				c := Call{Command: "ADD", ContainerID: fmt.Sprint("c", i+1)}
				o := b.call(ctx, c)
				if o.Status != 0 { // it fails again
					b.call(ctx, Call{Command: "DEL", ContainerID: c.ContainerID})
					return c, nil
				}
			}
			return Call{}, errors.ErrUnsupported // there is more
		}})
	}
	b, err := s.bench(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range b.damages() {
		all = append(all, failingADD{"whose configuration " + d.what, func(_ context.Context, b *bench) (Call, error) {
			d.do(b)
			return Call{Command: "ADD"}, nil
		}, true})
	}
	return all, nil
}

// checkDelFailed wants nothing to be left of an ADD that failed and its DEL, in whatever way it
// failed. An ADD that succeeds is for other checks.
func checkDelFailed(ctx context.Context, s *suite) error {
	all, err := s.failingADDs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, add := range all {
		errs = append(errs, onNew(func(ctx context.Context, b *bench, _ Outcome) error {
			c, err := add.prepare(ctx, b)
			if errors.Is(err, errors.ErrUnsupported) {
				return nil
			}
			before, serr := b.state(ctx)
			if err := errors.Join(err, serr); err != nil {
				return err
			}
			live := b.exec.Live()
			added := b.call(ctx, c)
			err = b.call(ctx, Call{Command: "DEL", ContainerID: c.ContainerID}).failure()
			if added.Status == 0 || added.late || err != nil && add.broken {
				return nil
			}
			what := "the DEL after an ADD " + add.what
			if err != nil {
				return fmt.Errorf("%s fails: %w", what, err)
			}
			if now := b.exec.Live(); !slices.Equal(now, live) {
				return fmt.Errorf("%s leaves behind %q, and before the ADD there was %q: delegates ran as %q", what, now, live, b.exec.Trace())
			}
			return b.noMore(ctx, what, before)
		})(ctx, s))
	}
	return one(errs...)
}

// checkVersionUnknown wants the error code that the specification has for a version.
func checkVersionUnknown(ctx context.Context, b *bench, _ Outcome) error {
	c, err := unknown(ctx, b)
	if err != nil {
		return err
	}
	what := "an ADD whose configuration has cniVersion " + unknownVersion
	o := b.call(ctx, c)
	if o.Status == 0 {
		b.call(ctx, Call{Command: "DEL", ContainerID: c.ContainerID})
		return fmt.Errorf("%s succeeds", what)
	}
	said := (*types.Error)(nil)
	if err := o.Err(); !errors.As(err, &said) || said.Code != types.ErrIncompatibleCNIVersion {
		return fmt.Errorf("%s fails, and not with code %d: %w", what, types.ErrIncompatibleCNIVersion, bounded(err))
	}
	return nil
}
