package kube

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
	"github.com/metacni/metacni/netconf/nad"
)

// A known is a definition in the store.
type known struct {
	definition nad.Definition
	err        error // why it cannot be used
}

// keepDefinition returns what a store keeps of a definition.
func keepDefinition(object any) (types.NamespacedName, known, bool) {
	d, ok := object.(*definition)
	if !ok || d.Name == "" {
		return types.NamespacedName{}, known{}, false
	}
	return types.NamespacedName{Namespace: d.Namespace, Name: d.Name}, known{d.value, d.err}, true
}

// Definition returns the definition r from the View. Until the View has synced it returns
// the one in Config.Mirror, unless there is a Config.MaxViewAge. If the View does not have r
// it waits for Config.NADWait, and then asks the API server once, if that allows it. It
// leaves at least two fifths of the time that ctx has.
//
// Definition fails
//
//   - as [nad.Ref.Validate] does;
//   - as [nad.Parse] does, for a definition that cannot be used;
//   - with [ErrNotFound], which is also netconf.ErrNotFound, only if r certainly does not
//     exist;
//   - with [ErrNotSynced] if it is not known whether r exists, and for a View older than
//     Config.MaxViewAge.
func (v *View) Definition(ctx context.Context, r nad.Ref) (nad.Definition, error) {
	return v.definition(ctx, r, v.config.NADWait, v.liveDefinition)
}

// KnownDefinition is Definition for a name that may also be that of a file, such as one in a
// configuration. If the View has synced and does not have r, it fails with [ErrNotFound] at
// once and makes no request.
func (v *View) KnownDefinition(ctx context.Context, r nad.Ref) (nad.Definition, error) {
	return v.definition(ctx, r, -1, func(context.Context, nad.Ref) (known, error) {
		return known{}, ErrNotFound
	})
}

// Definitions returns the definitions in the View, in no order. One that cannot be used comes
// with the error of [nad.Parse], and may be zero.
func (v *View) Definitions() iter.Seq2[nad.Definition, error] {
	all := v.definitions.store.all()
	return func(yield func(nad.Definition, error) bool) {
		for _, k := range all {
			if !yield(k.definition, k.err) {
				return
			}
		}
	}
}

// OnDefinition calls f with the name of each definition in the View, and later with each that
// is new, has changed or is gone. f must not block. It may be called with the same name again,
// and by two goroutines at the same time.
func (v *View) OnDefinition(f func(nad.Ref)) {
	v.definitions.store.follow(func(key types.NamespacedName) { f(nad.Ref(key)) })
}

// definition looks r up. If the View does not have it, definition waits for limit and then
// calls live.
func (v *View) definition(ctx context.Context, r nad.Ref, limit time.Duration, live func(context.Context, nad.Ref) (known, error)) (nad.Definition, error) {
	if err := r.Validate(); err != nil {
		return nad.Definition{}, err
	}
	if !v.definitions.store.synced() {
		if d, err := v.mirrored(r); err == nil {
			return d, nil
		}
	}
	object := "NAD " + r.String()
	k, found, err := v.definitions.find(ctx, types.NamespacedName(r), limit, func(known) bool { return true })
	if err == nil && !found {
		k, err = live(ctx, r)
	}
	if err != nil {
		return nad.Definition{}, fmt.Errorf("%s: %w", object, err)
	}
	return k.definition, k.err
}

// mirrored returns the definition r of the mirror.
func (v *View) mirrored(r nad.Ref) (nad.Definition, error) {
	if v.config.Mirror == "" || v.config.MaxViewAge > 0 {
		return nad.Definition{}, os.ErrNotExist
	}
	return nad.Load(os.DirFS(v.config.Mirror), r)
}

// liveDefinition asks the API server for a definition that the View does not have.
func (v *View) liveDefinition(ctx context.Context, r nad.Ref) (known, error) {
	ctx, cancel := within(ctx, liveLimit)
	defer cancel()
	var d definition
	err := v.nads.do(ctx, http.MethodGet, func(q *rest.Request) {
		q.Namespace(r.Namespace).Resource(definitionResource).Name(r.Name)
	}).Into(&d)
	alive, _ := v.definitions.source.state()
	switch {
	case err == nil && d.Namespace == r.Namespace && d.Name == r.Name:
		v.definitions.waits.live.Add(1)
		return known{d.value, d.err}, nil
	case err == nil:
		err = errors.New("the answer is not the definition")
	case apierr.None(err), apierrors.IsForbidden(err) && alive:
		v.definitions.waits.none.Add(1)
		return known{}, ErrNotFound
	}
	v.definitions.waits.none.Add(1)
	return known{}, because(ErrNotSynced, cause(err))
}

// within returns a context that ends after limit, or a quarter of the time that ctx has
// left if that is less.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/4)
	}
	return context.WithTimeout(ctx, limit)
}
