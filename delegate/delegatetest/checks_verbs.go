package delegatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// deleted runs DEL, and fails unless that succeeds and leaves nothing.
func (b *bench) deleted(ctx context.Context, what string, c Call) error {
	if err := b.call(ctx, c).Err(); err != nil {
		return fmt.Errorf("%s fails: %w", what, err)
	}
	return b.empty(what)
}

func checkDel(ctx context.Context, b *bench, added Outcome) error {
	return b.deleted(ctx, "DEL", b.later("DEL", added))
}

func checkDelAgain(ctx context.Context, b *bench, added Outcome) error {
	if b.call(ctx, b.later("DEL", added)).Status != 0 {
		return nil // the check "del" is about that
	}
	if err := b.call(ctx, b.later("DEL", added)).Err(); err != nil {
		return fmt.Errorf("a second DEL fails: %w", err)
	}
	return nil
}

func checkDelUnknown(ctx context.Context, b *bench, _ Outcome) error {
	return b.deleted(ctx, "a DEL without ADD", Call{Command: "DEL"})
}

func checkDelFailed(ctx context.Context, b *bench, _ Outcome) error {
	b.fault("ADD", b.fatal(), failing)
	b.call(ctx, Call{Command: "ADD"})
	return b.deleted(ctx, "the DEL after an ADD that failed", Call{Command: "DEL"})
}

func checkDelBare(ctx context.Context, b *bench, _ Outcome) error {
	return b.deleted(ctx, "a DEL without CNI_NETNS and prevResult", Call{Command: "DEL", NetNS: none})
}

func checkDelRetry(ctx context.Context, s *suite, k, n int) error {
	return onAttached(func(ctx context.Context, b *bench, added Outcome) error {
		b.fault("DEL", k, failing)
		b.call(ctx, b.later("DEL", added))
		return b.deleted(ctx, fmt.Sprintf("a DEL after one whose delegate %d of %d failed", k, n), b.later("DEL", added))
	})(ctx, s)
}

func checkCheck(ctx context.Context, b *bench, added Outcome) error {
	if err := b.call(ctx, b.later("CHECK", added)).Err(); err != nil {
		return fmt.Errorf("CHECK fails: %w", err)
	}
	errs := []error{b.ran("CHECK")}
	for _, c := range b.calls("CHECK") {
		var conf struct {
			PrevResult map[string]any `json:"prevResult"`
		}
		if err := json.Unmarshal(c.Stdin, &conf); err != nil || conf.PrevResult == nil {
			errs = append(errs, fmt.Errorf("%v has no prevResult", c))
		}
	}
	return errors.Join(errs...)
}

func checkGC(ctx context.Context, b *bench, added Outcome) error {
	o := b.call(ctx, b.later("GC", added))
	if err := o.Err(); err != nil {
		return fmt.Errorf("GC fails: %w", err)
	}
	if out := bytes.TrimSpace(o.Stdout); len(out) > 0 {
		return fmt.Errorf("GC prints %q", clip(out))
	}
	return b.ran("GC")
}

func checkGCError(ctx context.Context, s *suite) error {
	if err := failsWith("GC")(ctx, s); err != nil {
		return err
	}
	return onAttached(func(ctx context.Context, b *bench, added Outcome) error {
		b.fault("GC", 1, failing)
		b.call(ctx, b.later("GC", added))
		if err := b.ran("GC"); err != nil {
			return fmt.Errorf("when one delegate fails: %w", err)
		}
		return nil
	})(ctx, s)
}

func checkGCValid(ctx context.Context, b *bench, added Outcome) error {
	before := b.exec.Live()
	b.call(ctx, b.later("GC", added))
	if live := b.exec.Live(); !slices.Equal(before, live) {
		return fmt.Errorf("of the valid attachments %q GC leaves %q", before, live)
	}
	var errs []error
	for _, c := range b.calls("GC") {
		var conf struct {
			Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
		}
		_ = json.Unmarshal(c.Stdin, &conf) // then it has none
		for _, add := range b.calls("ADD") {
			if add.Plugin == c.Plugin && !slices.Contains(conf.Valid, types.GCAttachment{ContainerID: add.ContainerID, IfName: add.IfName}) {
				errs = append(errs, fmt.Errorf("%v has cni.dev/valid-attachments %v, without %s %s", c, conf.Valid, add.ContainerID, add.IfName))
			}
		}
	}
	return errors.Join(errs...)
}

func checkStatus(ctx context.Context, b *bench, _ Outcome) error {
	if err := b.call(ctx, Call{Command: "STATUS"}).Err(); err != nil {
		return fmt.Errorf("STATUS fails: %w", err)
	}
	return b.ran("STATUS")
}
