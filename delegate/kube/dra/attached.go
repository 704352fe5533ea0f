package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf/nad"
)

// An attachment says what a pod is attached to because of a device of a claim.
type attachment struct {
	device
	ifName string          // the interface in the container
	netns  string          // the container's
	result json.RawMessage // of the ADD, in any version of CNI
}

// has reports whether a is there because of the claim, for any pod if r has none: the origin that
// is recorded with it says so. An attachment whose pod is unknown may be that of the pod of r.
func (r Ref) has(a delegate.Attached) bool {
	uid, pod := nad.ParseOrigin(a.Origin).Claim.UID, nad.PodOf(a.Args).UID
	return uid != "" && uid == r.UID && (r.Pod == "" || pod == "" || pod == r.Pod)
}

// attached returns the attachments of the claim in the newest sandbox that has any: a sandbox of the
// claim's pod, or of any pod if r names none. Use it to show them only: see unattached.
func (c Config) attached(ctx context.Context, r Ref) ([]attachment, error) {
	records, err := c.Records(ctx, r.Pod)
	slices.SortStableFunc(records, func(a, b Detachable) int { return b.Created.Compare(a.Created) })
	var all []attachment
	newest := ""
	for _, record := range records {
		for i, a := range record.Attached {
			if record.Whole(i) && r.has(a) && (len(all) == 0 || record.Key.ContainerID == newest) {
				of := nad.ParseOrigin(a.Origin).Claim
				all = append(all, attachment{device{of.Pool, of.Device, of.Share}, a.IfName, a.NetNS, a.Result})
				newest = record.Key.ContainerID
			}
		}
	}
	return all, err
}

// unattached fails unless it is certain that no sandbox has anything because of the claim: with
// errInUse for a record in any state that has, and with the error of one that cannot be read. What the DEL
// of a sandbox has given up does not hold up the claim, as it does not hold up the sandbox.
func (c Config) unattached(ctx context.Context, r Ref) error {
	records, err := c.Records(ctx, "")
	for _, record := range records {
		for _, a := range slices.Concat(record.Attached, record.Leftovers) {
			if r.has(a) && !record.GivenUp {
				return errors.Join(fmt.Errorf("%w: record %q is %s, and its interface %s is still attached", errInUse, record.Key, record.State, a.IfName), err)
			}
		}
	}
	return err
}

// detach removes the attachments of the claim from all sandboxes, last first.
func (c Config) detach(ctx context.Context, r Ref) error {
	records, err := c.Records(ctx, "")
	errs := []error{err}
	for _, record := range records {
		for _, a := range slices.Backward(record.Attached) {
			if r.has(a) {
				if err := record.Detach(ctx, a.IfName); !record.GivenUp {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}
