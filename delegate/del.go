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
// so. Removing what is not there succeeds, provided the plugins' DEL is
// idempotent.
//
// Plugins of networks of CNI 0.4.0 and later receive a's result as prevResult,
// if there is one. Those in a.Gone are not run.
func (iv *Invoker) Del(ctx context.Context, a Attached) error {
	return iv.DelAll(ctx, []Attached{a})
}

// DelAll removes each of as, last first, as Del does. One that fails does not
// keep the others from being removed; all failures are joined in the error.
//
// With [Invoker.Parallel] they are removed at once, begun last first. The errors
// are in the order of the work without it.
//
// Each note is told of every plugin whose DEL has succeeded. A DEL that is
// tried again should leave these out, by [Attached.Gone]: what they freed, such
// as an address, may belong to another container by then.
func (iv *Invoker) DelAll(ctx context.Context, as []Attached, note ...Note) error {
	whole := func(ctx context.Context, _ int) (context.Context, context.CancelFunc) { return ctx, func() {} }
	return iv.removeAll(ctx, slices.Clone(as), make([]int, len(as)), whole, &notes{all: note})
}

// A turn makes the context for one plugin out of the caller's.
type turn func(ctx context.Context, round int) (context.Context, context.CancelFunc)

// removeAll removes each of as, last first, and joins the errors. It keeps in as
// what is gone. rounds says in which round of undoing each is begun.
func (iv *Invoker) removeAll(ctx context.Context, as []Attached, rounds []int, each turn, notes *notes) error {
	errs := iv.backward(len(as), func(i int) error { return iv.remove(ctx, i, &as[i], rounds[i], each, notes) })
	slices.Reverse(errs)
	return errors.Join(errs...)
}

// remove runs the DEL of a's plugins that are left, last first.
func (iv *Invoker) remove(ctx context.Context, i int, a *Attached, round int, each turn, notes *notes) (err error) {
	defer catch(&err)
	if err := checkAttachment(CommandDel, a.Attachment); err != nil {
		return err
	}
	prev := a.prevResult()
	var errs []error
	for p := range slices.Backward(a.Network.Plugins()) {
		if slices.Contains(a.Gone, p) {
			continue
		}
		ctx, done := each(ctx, round)
		_, err := iv.findAndRun(ctx, iv.invocation(CommandDel, a.Attachment, p), prev, nil)
		done()
		round++
		if err == nil {
			a.Gone = withIndex(a.Gone, p)
			err = notes.tell(i, *a)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prevResult is what CHECK and DEL hand to the plugins of a: the result in the
// network's version, or nil where there is none, or none that this version can
// express, or the version is older than prevResult in DEL (CNI 0.4.0).
func (a Attached) prevResult() json.RawMessage {
	v := a.Network.CNIVersion()
	if !atLeast(v, "0.4.0") {
		return nil
	}
	if have, err := resultVersion(a.Result); err == nil && have == v {
		return a.Result
	}
	// What cannot be handed on as it is must not keep DEL from running.
	r, err := decodeResult(a.Result)
	if err != nil {
		return nil
	}
	if r, err = convert(r, v); err != nil {
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
