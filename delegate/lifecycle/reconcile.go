package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/scratch"
)

// A ReconcileRequest says which attachments a running container should have. Its
// functions are called one at a time, with the container's lock held.
type ReconcileRequest struct {
	// Wanted returns what the container should be attached to, in order. It is
	// called again before each change, with the record as it is then. If it
	// fails, nothing more is changed. A caller who knows that r is not the
	// container's any more, or cannot tell how r came about, returns an error.
	Wanted func(ctx context.Context, r AddRecord) ([]Wanted, error)

	// Confirmed, if not nil, is called where something would be detached by what Wanted
	// returns, and decides in its place. It returns what was certainly wanted after all of r
	// was attached: Wanted may return what was wanted before. If it fails, nothing is
	// detached, and nothing is attached to an interface that would have been.
	Confirmed func(ctx context.Context, r AddRecord) ([]Wanted, error)

	// Recorded returns what was wanted when a was attached, which it usually
	// finds in a.Origin. It may leave out Plan. Attachments for which mine is
	// false stay, and so does the attachment to the interface of the record's
	// key.
	Recorded func(a delegate.Attached) (w Wanted, mine bool)

	// Prepare, if not nil, is that of the [Transaction] of each attachment that is
	// made.
	Prepare func(ctx context.Context, plan []delegate.Attachment) error

	// Replace detaches an attachment whose Options have changed, and attaches
	// it again, if its IfName is asked for and the new one can be planned. All
	// other attachments stay although their Options have changed.
	Replace bool

	// Timeout bounds each change, with the wait for the container's lock, so that a
	// plugin that hangs does not keep the others from their turn. Undoing comes on
	// top, see [delegate.Invoker]. Zero means no bound.
	Timeout time.Duration
}

// A Wanted is an attachment that a running container should have.
type Wanted struct {
	// Network says which network it is, in the caller's words.
	Network string

	// IfName is the interface that is asked for. Empty means any.
	IfName string

	// Options is everything else that is asked for, in any form in which equal
	// options are equal strings.
	Options string

	// Plan returns the attachment. It is called only if the attachment is
	// missing, and once more before another is detached for it, then with taken
	// nil. taken holds the interface names in use, and if IfName is empty also
	// those that are asked for. An empty ContainerID or NetNS of the attachment
	// becomes that of the record. [ReconcileRequest.Recorded] must find this
	// Wanted in the attachment.
	Plan func(ctx context.Context, taken []string) (delegate.Attachment, error)
}

// asked is what the caller asks for with w, to be compared.
func (w Wanted) asked() [3]string { return [3]string{w.Network, w.IfName, w.Options} }

// A Change is one difference that [Manager.Reconcile] has found.
type Change struct {
	// Command is [delegate.CommandAdd] if something was attached, and
	// [delegate.CommandDel] if it was detached. It is empty for an
	// attachment that stays although its Options have changed.
	Command delegate.Command

	// Wanted is what is wanted or, if it was detached, was wanted. It is zero for
	// the remains of an interrupted Attach or Detach that Recorded does not know.
	Wanted Wanted

	// Attached is the attachment: with its result once it is attached, without
	// if that has failed, and zero if it could not be planned.
	Attached delegate.Attached

	// Err is why that has failed, or nil. It is an [*Error].
	Err error
}

// Reconcile attaches a running container to what r wants, and detaches it from
// what r does not want any more. It compares r.Wanted with the attachments in the
// record of k that are r's, see [ReconcileRequest.Recorded]:
//
//   - A Wanted with an IfName is there if this interface is attached to its Network.
//   - A Wanted without one is there if an attachment to its Network is that was
//     wanted without one. Equal Options come first, and then the order.
//   - What an interrupted Attach or Detach has left is not there.
//
// An attachment that was wanted without an interface keeps the one that it has: a
// Wanted of another Network with that IfName fails with [ErrPlan].
//
// Reconcile first detaches, last first, and then attaches in order, so that two
// networks can swap their interfaces. Each change is a transaction of its own with
// the container's lock held, like an [Manager.Attach] or [Manager.Detach]: others
// may come in between. A change that fails stops no other, and undoes none. Reconcile
// tries each change once. Detaching needs the record only, not r.Wanted's Plan.
// What a plugin has begun to detach counts as detached, even if that has failed.
// Only r.Confirmed detaches, if there is one; the rest of an interrupted Attach or
// Detach goes without it.
//
// Reconcile returns what it has done, in order, and then what stays although its
// Options have changed. The error is nil if the container has everything that it
// should have. It joins the errors of all that has failed, and that which ended
// Reconcile early; each is an [*Error]. If k is not recorded as added, or if its
// network namespace is gone, this is [ErrNotAdded]. A Del of k cancels Reconcile.
func (m *Manager) Reconcile(ctx context.Context, k scratch.Key, r ReconcileRequest) ([]Change, error) {
	ctx, finish := m.begin(ctx, k)
	defer finish()
	p := &pass{m: m, k: k, r: r, failed: make(map[[3]string]int), stuck: make(map[string]bool)}
	err := p.run(ctx)
	var errs []error
	for _, d := range p.done {
		errs = append(errs, d.Err)
	}
	return p.done, errors.Join(append(errs, fail(opReconcile, k, because(ctx, err)))...)
}

// A pass is one call of [Manager.Reconcile].
type pass struct {
	m      *Manager
	k      scratch.Key
	r      ReconcileRequest
	done   []Change
	failed map[[3]string]int // how often attaching has failed, by what was asked for
	stuck  map[string]bool   // interfaces that could not be detached
	doubt  error             // of Confirmed
}

// run makes one change after the other, until there is none to be made.
func (p *pass) run(ctx context.Context) error {
	switch {
	case p.r.Wanted == nil || p.r.Recorded == nil:
		return impossible("there is nothing to compare the record with")
	case p.m.nothing(p.k):
		return ErrNotAdded
	}
	for more := true; more; {
		if ctx.Err() != nil {
			if n := len(p.done); n > 0 && errors.Is(p.done[n-1].Err, ctx.Err()) {
				return nil // it says so already
			}
			return cause.Of(ctx)
		}
		var err error
		if more, err = p.next(ctx); err != nil {
			return err
		}
	}
	return p.doubt
}

// next takes the container's lock and makes the next change, if there is one.
func (p *pass) next(ctx context.Context) (more bool, err error) {
	if p.r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.r.Timeout)
		defer cancel()
	}
	err = p.m.locked(ctx, opReconcile, p.k, func(ctx context.Context, l *scratch.Lock) (err error) {
		more, err = p.step(ctx, l)
		return err
	})
	return more, err
}

// step makes the next change, if there is one.
func (p *pass) step(ctx context.Context, l *scratch.Lock) (more bool, err error) {
	o := p.m.observe()
	r, err := p.m.added(ctx, p.k, o)
	if err != nil {
		return false, err
	}
	seen := p.m.record(r)
	netns := o.reachable(r.Value.Delegates)
	if netns == "" && slices.ContainsFunc(r.Value.Delegates, func(e entry) bool { return e.NetNS.Inode != 0 }) {
		return false, errVanished
	}
	wanted, err := p.r.Wanted(ctx, seen)
	if err != nil {
		return false, err
	}
	d := p.r.compare(seen, wanted)
	if p.r.Confirmed != nil && slices.ContainsFunc(d.unwanted, seen.Whole) {
		if p.doubt == nil {
			var confirmed []Wanted
			if confirmed, p.doubt = p.r.Confirmed(ctx, seen); p.doubt == nil {
				wanted, d = confirmed, p.r.compare(seen, confirmed)
			}
		}
		if p.doubt != nil {
			d.spare(seen)
		}
	}
	for _, i := range slices.Backward(d.unwanted) {
		if name := r.Value.Delegates[i].IfName; !p.stuck[name] {
			if p.replaceable(ctx, name, d.replaced[i]) {
				p.detach(ctx, l, r, i)
			}
			return true, nil
		}
	}
	times := make(map[[3]string]int) // so often it is missing
	for _, w := range d.missing {
		if times[w.asked()]++; times[w.asked()] > p.failed[w.asked()] {
			p.attach(ctx, l, r, netns, w, wanted)
			return true, nil
		}
	}
	p.done = append(p.done, d.changed...)
	return false, nil
}

// replaceable reports whether the attachment to an interface can be detached: whether
// the one that replaces it, if there is one, can be planned.
func (p *pass) replaceable(ctx context.Context, name string, by *Wanted) bool {
	if by == nil {
		return true
	}
	_, err := p.plan(ctx, *by, nil)
	if err != nil {
		p.stuck[name] = true
		p.failed[by.asked()]++
		p.done = append(p.done, Change{Command: delegate.CommandAdd, Wanted: *by, Err: fail(opAttach, p.k, because(ctx, err))})
	}
	return err == nil
}

// detach detaches the i'th delegate of r.
func (p *pass) detach(ctx context.Context, l *scratch.Lock, r scratch.Record[record], i int) {
	d := Change{Command: delegate.CommandDel, Attached: p.m.record(r).Attached[i]}
	d.Wanted, _ = p.r.Recorded(d.Attached)
	name := d.Attached.IfName
	err := p.m.drop(ctx, l, &r, errand{which: func(e entry) bool { return e.IfName == name }})
	d.Err = fail(opDetach, p.k, because(ctx, err))
	p.stuck[name] = err != nil
	p.done = append(p.done, d)
}

// attach attaches w to the container of r, whose namespace is at netns. It should have all of
// wanted.
func (p *pass) attach(ctx context.Context, l *scratch.Lock, r scratch.Record[record], netns string, w Wanted, wanted []Wanted) {
	d := Change{Command: delegate.CommandAdd, Wanted: w}
	added, err := p.m.attachTo(ctx, l, r, Transaction{
		NetNS: netns, Prepare: p.r.Prepare,
		Plan: func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
			for _, other := range wanted {
				if w.IfName == "" && other.IfName != "" {
					taken = append(taken, other.IfName)
				}
			}
			a, err := p.plan(ctx, w, taken)
			if err != nil {
				return nil, err
			}
			a.ContainerID, a.NetNS = cmp.Or(a.ContainerID, p.k.ContainerID), cmp.Or(a.NetNS, netns)
			d.Attached.Attachment = a
			return []delegate.Attachment{a}, nil
		},
	})
	if err == nil {
		d.Attached = added[0]
	} else {
		p.failed[w.asked()]++
	}
	d.Err = fail(opAttach, p.k, because(ctx, err))
	p.done = append(p.done, d)
}

// plan returns the attachment of w. It refuses one that would not be recognized
// in the record, and so would be made again and again.
func (p *pass) plan(ctx context.Context, w Wanted, taken []string) (delegate.Attachment, error) {
	if w.Plan == nil {
		return delegate.Attachment{}, impossible("there is no plan")
	}
	a, err := w.Plan(ctx, taken)
	if err != nil {
		return delegate.Attachment{}, err
	}
	again, mine := p.r.Recorded(delegate.Attached{Attachment: a})
	if !mine || again.asked() != w.asked() || w.IfName != "" && w.IfName != a.IfName || a.IfName == p.k.IfName {
		return delegate.Attachment{}, entry{Network: a.Network, IfName: a.IfName}.refused(p.k, impossible("it is not the attachment that is wanted"))
	}
	return a, nil
}

// A comparison is what there is to do about a record.
type comparison struct {
	unwanted []int           // of AddRecord.Attached
	replaced map[int]*Wanted // those that are unwanted because of their Options
	missing  []Wanted        // in order
	changed  []Change        // what stays with other Options
}

// spare takes the detaching of whole attachments out of d, and what they make room for.
func (d *comparison) spare(rec AddRecord) {
	kept := make(map[string]bool)
	d.unwanted = slices.DeleteFunc(d.unwanted, func(i int) bool {
		kept[rec.Attached[i].IfName] = rec.Whole(i)
		return rec.Whole(i)
	})
	d.missing = slices.DeleteFunc(d.missing, func(w Wanted) bool { return kept[w.IfName] })
}

// compare compares what is recorded with what is wanted.
func (r ReconcileRequest) compare(rec AddRecord, wanted []Wanted) (d comparison) {
	type candidate struct {
		Wanted
		a    delegate.Attached
		free bool
	}
	have := make([]candidate, len(rec.Attached))
	for i, a := range rec.Attached {
		w, mine := r.Recorded(a)
		have[i] = candidate{w, a, mine && rec.Whole(i) && a.IfName != rec.Key.IfName}
	}
	unwanted := make([]bool, len(have))
	for i, c := range have {
		unwanted[i] = c.free || !rec.Whole(i) // as long as nothing wants it
	}
	found := make([]int, len(wanted))
	for j := range found {
		found[j] = -1
	}
	for _, same := range []func(w Wanted, c candidate) bool{
		func(w Wanted, c candidate) bool { return w.IfName != "" && w.IfName == c.a.IfName },
		func(w Wanted, c candidate) bool { return w.IfName == "" && c.IfName == "" && w.Options == c.Options },
		func(w Wanted, c candidate) bool { return w.IfName == "" && c.IfName == "" },
	} {
		for j, w := range wanted {
			if found[j] >= 0 {
				continue
			}
			found[j] = slices.IndexFunc(have, func(c candidate) bool { return c.free && c.Network == w.Network && same(w, c) })
			if found[j] >= 0 {
				have[found[j]].free = false
			}
		}
	}
	d.replaced = make(map[int]*Wanted)
	for j, w := range wanted {
		i := found[j]
		changed := i >= 0 && w.Options != have[i].Options
		replace := changed && r.Replace && w.IfName != ""
		if replace {
			d.replaced[i] = &w
		}
		if i < 0 || replace {
			d.missing = append(d.missing, w)
			continue
		}
		unwanted[i] = false
		if changed {
			d.changed = append(d.changed, Change{Wanted: w, Attached: have[i].a})
		}
	}
	for i, is := range unwanted {
		if is {
			d.unwanted = append(d.unwanted, i)
		}
	}
	return d
}
