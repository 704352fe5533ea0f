package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/version"
)

// Del removes an attachment, last plugin first. It goes on past plugins that
// fail or cannot be found and joins the errors, in the order of the work: each
// is an [*Error]. Once ctx has ended nothing more is run, and the error says
// so. Removing what is not there succeeds, as far as the plugins see to it.
//
// Plugins of networks of CNI 0.4.0 and later receive a's result as prevResult,
// if there is one.
func (iv *Invoker) Del(ctx context.Context, a Attached) error {
	return iv.DelAll(ctx, []Attached{a})
}

// DelAll removes each of as, last first, as Del does. One that fails does not
// keep the others from being removed; all failures are joined in the error.
//
// With [Invoker.Parallel] they are removed at once, begun last first. The errors
// are in the order of the work without it.
func (iv *Invoker) DelAll(ctx context.Context, as []Attached) error {
	whole := func(ctx context.Context, _ int) (context.Context, context.CancelFunc) { return ctx, func() {} }
	return iv.removeAll(ctx, removals(as), whole)
}

// A removal is an attachment of which the first plugins have been run.
type removal struct {
	Attached
	plugins int
	round   int // of undoing, in which the last of them has its turn
}

func removals(as []Attached) []removal {
	rs := make([]removal, len(as))
	for i, a := range as {
		rs[i] = removal{Attached: a, plugins: len(a.Network.Plugins())}
	}
	return rs
}

// A turn makes the context for one plugin out of the caller's.
type turn func(ctx context.Context, round int) (context.Context, context.CancelFunc)

// removeAll removes each of rs, last first, and joins the errors.
func (iv *Invoker) removeAll(ctx context.Context, rs []removal, each turn) error {
	errs := make([]error, len(rs))
	iv.backward(len(rs), func(i int) { errs[i] = iv.remove(ctx, rs[i], each) })
	slices.Reverse(errs)
	return errors.Join(errs...)
}

// remove runs the DEL of r's plugins, last first.
func (iv *Invoker) remove(ctx context.Context, r removal, each turn) error {
	if err := checkAttachment("DEL", r.Attachment); err != nil {
		return err
	}
	prev := r.prevResult()
	var errs []error
	for i := r.plugins - 1; i >= 0; i-- {
		in := iv.invocation("DEL", r.Attachment, i)
		ctx, done := each(ctx, r.round+r.plugins-1-i)
		_, err := iv.findAndRun(ctx, in, prev, nil)
		done()
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prevResult is what CHECK and DEL hand to the plugins of a: the result in the
// network's version, or nil where there is none, or none that this version can
// express, or the version is older than prevResult in DEL (CNI 0.4.0).
func (a Attached) prevResult() json.RawMessage {
	v := a.Network.CNIVersion()
	if a.Result == nil || !atLeast(v, "0.4.0") {
		return nil
	}
	if have, err := resultVersion(a.Result); err == nil && have == v {
		return a.Result
	}
	// What cannot be handed on as it is must not keep DEL from running.
	r, err := typed(a.Result)
	if err != nil {
		return nil
	}
	if r, err = r.GetAsVersion(v); err != nil {
		return nil
	}
	converted, err := json.Marshal(r)
	if err != nil {
		return nil
	}
	return converted
}

// atLeast reports whether version v is w or later; what cannot be compared is
// not.
func atLeast(v, w string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, w)
	return err == nil && ok
}
