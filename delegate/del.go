package delegate

import (
	"context"
	"encoding/json"
	"errors"

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
func (iv *Invoker) DelAll(ctx context.Context, as []Attached) error {
	rs := removals(as)
	var errs []error
	for i := len(rs) - 1; i >= 0; i-- {
		errs = append(errs, iv.remove(rs[i], func() (context.Context, context.CancelFunc) { return ctx, func() {} }))
	}
	return errors.Join(errs...)
}

// A removal is an attachment of which the first plugins have been run.
type removal struct {
	Attached
	plugins int
}

func removals(as []Attached) []removal {
	rs := make([]removal, len(as))
	for i, a := range as {
		rs[i] = removal{a, len(a.Network.Plugins())}
	}
	return rs
}

// remove runs the DEL of r's plugins, last first, each in the context that
// turn gives.
func (iv *Invoker) remove(r removal, turn func() (context.Context, context.CancelFunc)) error {
	if err := checkAttachment("DEL", r.Attachment); err != nil {
		return err
	}
	prev := r.prevResult()
	var errs []error
	for i := r.plugins - 1; i >= 0; i-- {
		in := iv.invocation("DEL", r.Attachment, i)
		ctx, done := turn()
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
