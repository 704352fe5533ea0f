package delegate

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/version"
)

// Del removes an attachment, last plugin first. It goes on past plugins that
// fail or cannot be found, and joins their errors in the order of the work. Each
// is an [*Error]. Once ctx has ended Del runs nothing more, and the error says
// so. Removing what is not there succeeds, provided the plugins' DEL is
// idempotent.
//
// If there is a result, the plugins of networks of CNI 0.4.0 and later receive it
// as prevResult. Plugins in a.Gone are not run.
func (iv *Invoker) Del(ctx context.Context, a Attached) error {
	return iv.DelAll(ctx, []Attached{a})
}

// DelAll removes each of as, last first, as Del does. It goes on past those that
// fail, and joins all errors.
//
// With [Invoker.Parallel] several are removed at the same time, begun last first.
// The errors are in the same order as without it.
//
// Each note is called for every plugin of as[i] whose DEL has succeeded, as by [Invoker.AddAll];
// if it fails, DelAll goes on. When the DEL is tried again, these plugins should be in
// [Attached.Gone]: what they have freed, such as an address, may belong to another container by
// then.
func (iv *Invoker) DelAll(ctx context.Context, as []Attached, note ...func(i int, a Attached) error) error {
	return iv.removeAll(ctx, slices.Clone(as), make([]int, len(as)), nil, oneAtATime(note))
}

// removeAll removes each of as, last first, and joins the errors. It notes in as
// which plugins are gone. rounds says in which round of b each is begun.
func (iv *Invoker) removeAll(ctx context.Context, as []Attached, rounds []int, b *budget, tell note) error {
	errs := make([]error, len(as))
	iv.atOnce(len(as), func(k int) {
		i := len(as) - 1 - k
		errs[k] = iv.remove(ctx, i, &as[i], rounds[i], b, tell)
	})
	return errors.Join(errs...)
}

// remove runs the DEL of each plugin of a that is not gone, last first.
func (iv *Invoker) remove(ctx context.Context, i int, a *Attached, round int, b *budget, tell note) (err error) {
	defer catch(&err)
	if err := a.valid(CommandDel); err != nil {
		return err
	}
	prev := a.prevResult()
	var errs []error
	for p := range slices.Backward(a.Network.Plugins()) {
		if slices.Contains(a.Gone, p) {
			continue
		}
		ctx, done := b.turn(ctx, round)
		err := iv.findAndRun(ctx, a.invocation(CommandDel, p, prev))
		done()
		round++
		if err == nil {
			a.Gone = withIndex(a.Gone, p)
			err = tell(i, *a)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prevResult returns the result that CHECK and DEL hand to the plugins of a, in
// the network's version. It returns nil without a result, when this version
// cannot express it, and before CNI 0.4.0, which introduced prevResult in DEL.
func (a Attached) prevResult() json.RawMessage {
	v := a.Network.CNIVersion()
	if !atLeast(v, "0.4.0") {
		return nil
	}
	if have, err := resultVersion(a.Result); err == nil && have == v {
		return a.Result
	}
	r, err := decodeResult(a.Result)
	if err != nil {
		return nil
	}
	text, err := convert(r, v)
	if err != nil {
		return nil // DEL must run, with or without a result that the plugins can read
	}
	return text
}

// atLeast reports whether version v is w or later. It is false for what is no
// version.
func atLeast(v, w string) bool {
	ok, err := version.GreaterThanOrEqualTo(v, w)
	return err == nil && ok
}
