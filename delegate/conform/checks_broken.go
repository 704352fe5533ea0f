package conform

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A damage is a way to break the configuration of a bench.
type damage struct {
	what string
	do   func(*bench)
}

// damages returns the ways to break the configuration of b.
func (b *bench) damages() []damage {
	all := []damage{{"has a key twice", func(b *bench) { b.twice = true }}}
	for _, key := range slices.Sorted(maps.Keys(b.conf)) {
		if list, ok := b.conf[key].([]any); ok && len(list) > 0 {
			all = append(all,
				damage{fmt.Sprintf("has an empty list %q", key), func(b *bench) { b.conf[key] = []any{} }},
				damage{fmt.Sprintf("has a number for the list %q", key), func(b *bench) { b.conf[key] = 0 }},
			)
		}
	}
	if len(b.marked) > 0 {
		all = append(all, damage{"has empty objects for delegates", func(b *bench) {
			for key, v := range b.conf {
				b.conf[key] = rewrite(v, b.hollow)
			}
		}})
	}
	if len(b.files) > 0 {
		all = append(all, damage{"has lost its files", func(b *bench) {
			for _, file := range b.files {
				_ = os.Remove(file) // the plugin may have removed it
			}
		}})
	}
	return all
}

// hollow replaces the configuration of a delegate by an empty object.
func (b *bench) hollow(v any) any { //nolint:ireturn // any JSON value
	if conf, _ := b.delegate(v); conf != nil {
		return map[string]any{}
	}
	return v
}

// damaged calls try once for each way to break a configuration, with a new bench.
func (s *suite) damaged(ctx context.Context, try func(*bench, damage) error) error {
	var errs []error
	for i, n := 0, 1; i < n; i++ {
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		all := b.damages()
		n = len(all)
		errs = append(errs, try(b, all[i]))
	}
	return one(errs...)
}

func checkAddBroken(ctx context.Context, s *suite) error {
	return s.damaged(ctx, func(b *bench, d damage) error {
		d.do(b)
		what := "an ADD whose configuration " + d.what
		o := b.call(ctx, delegatetest.Invocation{Command: "ADD"})
		if o.late {
			return nil // it may wait for something that it needs with this configuration only
		}
		if err := o.Err(); err != nil {
			if said := (*types.Error)(nil); !errors.As(err, &said) {
				return fmt.Errorf("%s fails without an error object: %w", what, err)
			}
			return b.empty(what)
		}
		if _, err := o.Result(); err != nil {
			return fmt.Errorf("%s succeeds: %w", what, err)
		}
		return nil
	})
}

func checkDelBroken(ctx context.Context, s *suite) error {
	return s.damaged(ctx, func(b *bench, d damage) error {
		o, err := b.add(ctx, "c1")
		if err != nil {
			return err
		}
		d.do(b)
		return b.deleted(ctx, "the DEL of what was attached before the configuration "+d.what, b.later("DEL", o))
	})
}
