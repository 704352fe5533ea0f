package resident_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/resident"
)

// A request that is too large is refused where it is made, and the next one is
// done as if it had not been.
func TestRequestThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Update = (&updater{}).update
	n.start()
	r := n.serve(simple("10", "a"))
	u := resident.Update{Op: resident.Detach, ContainerID: "c1", IfName: "net1"}
	long := u
	long.Args = strings.Repeat("x", 1<<20)
	for name, us := range map[string][]resident.Update{"many": slices.Repeat([]resident.Update{u}, 65), "long": {long}} {
		if _, err := r.Request(t.Context(), us...); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: err = %v", name, err)
		}
		failed, err := r.Request(t.Context(), slices.Repeat([]resident.Update{u}, 64)...)
		if err != nil || len(failed) > 0 {
			t.Errorf("after %s: %v, %v", name, failed, err)
		}
	}
}

// Failures are answered however long their texts are: these are cut.
func TestLongFailuresAreAnswered(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Update = func(context.Context, resident.Info, resident.Update) error {
		return types.NewError(107, "no device"+strings.Repeat("\x00", 1<<20), strings.Repeat("ü", 1<<20))
	}
	n.start()
	r := n.serve(simple("10", "a"))
	var us []resident.Update
	for i := range 64 {
		us = append(us, resident.Update{Op: resident.Detach, ContainerID: fmt.Sprint("c", i), IfName: "net1"})
	}
	for range 2 {
		failed, err := r.Request(t.Context(), us...)
		ok(t, err)
		if len(failed) != 64 || failed[63].Err.Code != 107 || !strings.HasPrefix(failed[63].Err.Msg, "no device") || failed[63].ContainerID != "c63" {
			t.Errorf("%d failures", len(failed))
		}
	}
}

// A resident that is still told what is attached cannot ask for anything: that
// would wait for itself.
func TestRequestWhileItIsSynchronizedIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Update = (&updater{}).update
	n.start()
	d := simple("10", "a")
	u := resident.Update{Op: resident.Detach, ContainerID: "c1", IfName: "net1"}
	d.Synchronize = func(context.Context, []resident.Known) error {
		if _, err := d.Request(t.Context(), u); !errors.Is(err, resident.ErrGone) {
			return fmt.Errorf("asked: %w", err)
		}
		return nil
	}
	r := n.serve(d)
	failed, err := r.Request(t.Context(), u)
	if err != nil || len(failed) > 0 {
		t.Errorf("afterwards: %v, %v", failed, err)
	}
}
