package delegatetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
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
		var list []json.RawMessage
		if json.Unmarshal(b.conf[key], &list) == nil && len(list) > 0 {
			all = append(all,
				damage{fmt.Sprintf("has an empty list %q", key), func(b *bench) { b.conf[key] = json.RawMessage("[]") }},
				damage{fmt.Sprintf("has a number for the list %q", key), func(b *bench) { b.conf[key] = json.RawMessage("0") }},
			)
		}
	}
	if len(b.marked) > 0 {
		all = append(all, damage{"has empty objects for delegates", func(b *bench) {
			for key, v := range b.conf {
				b.conf[key] = b.hollow(v)
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

// hollow replaces the configurations of delegates in text by empty objects.
func (b *bench) hollow(text json.RawMessage) json.RawMessage {
	var object map[string]json.RawMessage
	var array []json.RawMessage
	var whole any
	switch {
	case json.Unmarshal(text, &object) == nil && object != nil:
		var typ string
		if json.Unmarshal(object["type"], &typ) == nil && slices.Contains(b.types(), typ) {
			return json.RawMessage("{}")
		}
		for k, v := range object {
			object[k] = b.hollow(v)
		}
		whole = object
	case json.Unmarshal(text, &array) == nil && array != nil:
		for i, v := range array {
			array[i] = b.hollow(v)
		}
		whole = array
	default:
		return text
	}
	data, err := json.Marshal(whole)
	if err != nil {
		panic(err) // what was JSON still is
	}
	return data
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
	return errors.Join(errs...)
}

func checkAddBroken(ctx context.Context, s *suite) error {
	return s.damaged(ctx, func(b *bench, d damage) error {
		d.do(b)
		what := "an ADD whose configuration " + d.what
		o := b.call(ctx, Call{Command: "ADD"})
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
	if err := s.works(); err != nil {
		return err
	}
	return s.damaged(ctx, func(b *bench, d damage) error {
		o := b.call(ctx, Call{Command: "ADD"})
		if err := o.Err(); err != nil {
			return fmt.Errorf("ADD fails: %w", err)
		}
		d.do(b)
		return b.deleted(ctx, "the DEL of what was attached before the configuration "+d.what, b.later("DEL", o))
	})
}
