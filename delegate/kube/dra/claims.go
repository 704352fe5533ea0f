package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube/internal/apierr"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// askTimeout limits how long an ADD waits for the API server's word about claims that are not
// prepared.
const askTimeout = time.Second

// Claims returns the claims that are prepared for the pod p, in the order of their UIDs. The ADD
// of the pod attaches it to their networks. Of p it uses the UID, and the namespace for names.
//
// It fails with CNI code 5 if the record of one of them is damaged, and with CNI code 7 if one
// of the claims could not be prepared now: what pods may have can change between the request of
// the kubelet and the ADD.
//
// names are the claims that the pod certainly has, if somebody knows them. The kubelet has had
// them prepared before the ADD; a record of that may be lost nevertheless. So Claims asks the API
// server about those that are not prepared, once, and fails with CNI code 11 if one of them
// is allocated to the driver. If the API server does not answer, what is prepared decides: pods
// without claims, and with those of other drivers, start during an outage, at the usual speed.
//
// The kubelet has a claim that several pods share prepared once, for the first of them. Claims
// prepares it for p too if it is reserved for p, and so fails as preparing does. Without names it asks
// the API server about each such claim of the pod's namespace that is prepared for another pod.
func (d *Driver) Claims(ctx context.Context, p nad.Pod, names ...string) ([]Claim, error) {
	if d == nil {
		return nil, nil
	}
	prepared, err := d.prepared(p.UID)
	if err != nil {
		return nil, err
	}
	for _, claim := range prepared {
		if err := claim.check(d.config); err != nil {
			return nil, err
		}
	}
	missing := func(name string) bool {
		return !slices.ContainsFunc(prepared, func(c Claim) bool { return c.Name == name })
	}
	certain := len(names) > 0
	if p.UID == "" || certain && !slices.ContainsFunc(names, missing) {
		return prepared, nil
	}
	shared := d.shared(ctx, p.Namespace, certain)
	if !certain {
		names = slices.Sorted(maps.Keys(shared))
	}
	asked, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), askTimeout)
	defer cancel()
	for _, name := range names {
		if !missing(name) {
			continue
		}
		ref := Ref{Namespace: p.Namespace, Name: name, Pod: p.UID}
		claim, err := d.client.ResourceV1().ResourceClaims(ref.Namespace).Get(asked, name, metav1.GetOptions{})
		switch {
		case apierr.None(err):
		case err != nil && certain && shared[name] != "":
			return nil, ref.notPrepared(err)
		case err != nil:
			d.log.WarnContext(ctx, "claim is unknown, it is taken for that of another driver or pod", "pod", p.String(), "claim", ref.String(), "error", err)
		case !d.allocated(claim):
		case shared[name] == string(claim.UID) && reservedFor(claim, p.UID):
			one, err := d.prepare(ctx, claim, p.UID)
			if err != nil {
				return nil, err
			}
			prepared = append(prepared, one)
		case certain:
			return nil, ref.notPrepared(d.Err())
		}
	}
	slices.SortFunc(prepared, func(a, b Claim) int { return strings.Compare(a.UID, b.UID) })
	return prepared, nil
}

// shared returns the UIDs, by name, of the claims of a namespace that are prepared, and that several
// pods may have: with certain also those of which no record says so, as before it was recorded. The
// kubelet will release them.
func (d *Driver) shared(ctx context.Context, namespace string, certain bool) map[string]string {
	all, err := d.all()
	if err != nil {
		d.log.WarnContext(ctx, "not all claims that pods may share are known", "error", err)
	}
	shared := make(map[string]string)
	for _, c := range all {
		if c.Namespace == namespace && (c.Shared || certain) {
			shared[c.Name] = c.UID
		}
	}
	return shared
}

// allocated reports whether a claim has devices of the driver.
func (d *Driver) allocated(c *resourcev1.ResourceClaim) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results,
		func(a resourcev1.DeviceRequestAllocationResult) bool { return a.Driver == d.config.Name })
}

// notPrepared is the error for a claim that is not prepared, perhaps because of err.
func (r Ref) notPrepared(err error) error {
	if err == nil {
		return r.failure(errNotPrepared)
	}
	return r.failure(fmt.Errorf("%w: %w", errNotPrepared, err))
}

// Held fails with CNI code 11 if one of the claims for which the pod p is to be attached was
// released since [Driver.Claims] has returned it: others may get the device. Call it when the plan
// of the ADD is recorded, before the first plugin runs, see [lifecycle.Transaction]: a release that
// comes later finds the record. It waits for a release of the pod's claims to end.
func (d *Driver) Held(ctx context.Context, p nad.Pod, plan []delegate.Attachment) error {
	if d == nil {
		return nil
	}
	planned := slices.ContainsFunc(plan, func(a delegate.Attachment) bool { return nad.ParseOrigin(a.Origin).Claim.UID != "" })
	if !planned {
		return nil
	}
	return d.change(ctx, Ref{Pod: p.UID}, func(s scratch.Store[storedClaim], _ *scratch.Lock) error {
		for _, a := range plan {
			claim := nad.ParseOrigin(a.Origin).Claim
			if claim.UID == "" {
				continue
			}
			ref := Ref{UID: claim.UID, Namespace: p.Namespace, Name: claim.Name, Pod: p.UID}
			_, err := s.Get(ref.key())
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return ref.notPrepared(errors.New("the kubelet has released it during the ADD"))
			case err != nil:
				return ref.failure(err)
			}
		}
		return nil
	})
}
