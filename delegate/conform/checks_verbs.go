package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// succeeds makes a call, and returns an error if the call fails.
func (b *bench) succeeds(ctx context.Context, what string, c delegatetest.Invocation) error {
	if err := b.call(ctx, c).failure(); err != nil {
		return fmt.Errorf("%s fails: %w", what, err)
	}
	return nil
}

// released runs DEL, and fails unless that succeeds and leaves no attachment of a delegate.
func (b *bench) released(ctx context.Context, what string, c delegatetest.Invocation) error {
	if err := b.succeeds(ctx, what, c); err != nil {
		return err
	}
	return b.empty(what)
}

// deleted is released, and fails as well if anything is left on the host.
func (b *bench) deleted(ctx context.Context, what string, c delegatetest.Invocation) error {
	if err := b.released(ctx, what, c); err != nil {
		return err
	}
	return b.clean(ctx, what)
}

func checkDel(ctx context.Context, b *bench, added outcome) error {
	c := b.c1
	had := c.has(b.ifname)
	if err := b.deleted(ctx, "DEL", b.later("DEL", added)); err != nil {
		return err
	}
	if b.chained && had && !c.has(b.ifname) {
		return fmt.Errorf("DEL removes the interface %s, which another plugin has made", b.ifname)
	}
	return nil
}

func checkDelAgain(ctx context.Context, b *bench, added outcome) error {
	if b.call(ctx, b.later("DEL", added)).Status != 0 {
		return nil // the check "del" is about that
	}
	return b.succeeds(ctx, "a second DEL", b.later("DEL", added))
}

func checkDelUnknown(ctx context.Context, b *bench, _ outcome) error {
	return b.deleted(ctx, "a DEL without ADD", delegatetest.Invocation{Command: "DEL"})
}

// checkDelBare leaves out CNI_NETNS, and prevResult too in the newest version that lets a runtime
// do so, 0.4.0 or older: "When CNI_NETNS and/or prevResult are not provided, the plugin should
// clean up as many resources as possible". What is left on the host is for "del-gone".
func checkDelBare(ctx context.Context, s *suite) error {
	var old string
	for _, v := range s.versions {
		if !atLeast(v, "1.0.0") {
			old = v
		}
	}
	for _, version := range slices.Compact([]string{s.version, old}) {
		if version == "" || s.chained && !atLeast(version, "0.3.0") {
			continue
		}
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		b.version = version
		o := b.call(ctx, delegatetest.Invocation{Command: "ADD"})
		if o.Status != 0 {
			continue // the check "versions" is about that
		}
		what, c := "a DEL without CNI_NETNS", b.later("DEL", o)
		if version == old {
			what, c = fmt.Sprintf("a DEL of version %s without CNI_NETNS and prevResult", version), delegatetest.Invocation{Command: "DEL"}
		}
		c.NetNS = none
		if err := b.released(ctx, what, c); err != nil {
			return err
		}
	}
	return nil
}

func checkDelRetry(ctx context.Context, s *suite, k, n int) error {
	return onAttached(func(ctx context.Context, b *bench, added outcome) error {
		b.fault("DEL", k, failing)
		b.call(ctx, b.later("DEL", added))
		// The check "del-gone" is about the host.
		return b.released(ctx, fmt.Sprintf("a DEL after one whose delegate %d of %d failed", k, n), b.later("DEL", added))
	})(ctx, s)
}

func checkFresh(ctx context.Context, b *bench, added outcome) error {
	return b.succeeds(ctx, "the CHECK right after ADD", b.later("CHECK", added))
}

func checkCheck(ctx context.Context, b *bench, added outcome) error {
	b.call(ctx, b.later("CHECK", added))
	errs := []error{b.ran("CHECK")}
	for _, c := range b.calls("CHECK") {
		var conf struct {
			PrevResult map[string]any `json:"prevResult"`
		}
		if err := json.Unmarshal(c.Stdin, &conf); err != nil || conf.PrevResult == nil {
			errs = append(errs, fmt.Errorf("%v has no prevResult", c))
		}
	}
	return one(errs...)
}

func checkGCQuiet(ctx context.Context, b *bench, added outcome) error {
	o := b.call(ctx, b.later("GC", added))
	if err := o.failure(); err != nil {
		return fmt.Errorf("GC fails: %w", err)
	}
	if out := bytes.TrimSpace(o.Stdout); len(out) > 0 {
		return fmt.Errorf("GC prints %q", printed.Clip(out))
	}
	return nil
}

func checkGC(ctx context.Context, b *bench, added outcome) error {
	b.call(ctx, b.later("GC", added))
	return b.ran("GC")
}

func checkGCError(ctx context.Context, s *suite) error {
	if err := failsWith("GC")(ctx, s); err != nil {
		return err
	}
	return onAttached(func(ctx context.Context, b *bench, added outcome) error {
		b.fault("GC", 1, failing)
		b.call(ctx, b.later("GC", added))
		if err := b.ran("GC"); err != nil {
			return fmt.Errorf("when one delegate fails: %w", err)
		}
		return nil
	})(ctx, s)
}

func checkGCValid(ctx context.Context, b *bench, added outcome) error {
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
	return one(errs...)
}

func checkStatusReady(ctx context.Context, b *bench, _ outcome) error {
	return b.succeeds(ctx, "ADD succeeds and STATUS", delegatetest.Invocation{Command: "STATUS"})
}

func checkStatus(ctx context.Context, b *bench, _ outcome) error {
	b.call(ctx, delegatetest.Invocation{Command: "STATUS"})
	return b.ran("STATUS")
}
