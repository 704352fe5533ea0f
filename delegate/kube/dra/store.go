package dra

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"time"

	"github.com/metacni/metacni/scratch"
)

// A storedClaim is a Claim on disk. If it was read it is written again as it was, with the keys
// that a later release has added.
type storedClaim struct {
	Claim
	text []byte // as it was read
}

func (s *storedClaim) UnmarshalJSON(text []byte) error {
	s.text = bytes.Clone(text)
	return json.Unmarshal(text, &s.Claim)
}

func (s storedClaim) MarshalJSON() ([]byte, error) {
	if s.text != nil {
		return s.text, nil
	}
	return json.Marshal(s.Claim)
}

// store returns the claims that are prepared, so that a daemon finds them after a restart. Several
// processes may use it.
func (c Config) store() scratch.Store[storedClaim] { return scratch.Store[storedClaim]{Dir: c.Dir} }

// key returns the key of the record of a claim: the pod is the container, and the claim the network.
func (r Ref) key() scratch.Key {
	return scratch.Key{Network: r.UID, ContainerID: r.Pod, IfName: "claim"}
}

// Prepared returns the claims in a [Config.Dir] that are prepared for a pod, or for all pods
// if podUID is empty, by the UIDs of pod and claim. No Driver need be started. With an error about
// records that cannot be read, it returns the others. The CNI code of a damaged one is 5.
func Prepared(ctx context.Context, dir, podUID string) ([]Claim, error) {
	store := Config{Dir: dir}.store()
	var claims []Claim
	if podUID != "" {
		records, err := store.Container(ctx, podUID)
		for _, r := range records {
			claims = append(claims, r.Value.Claim)
		}
		return claims, err
	}
	var errs []error
	for r, err := range store.List(ctx) {
		if err == nil {
			claims = append(claims, r.Value.Claim)
		}
		errs = append(errs, err)
	}
	return claims, errors.Join(errs...)
}

// prepared returns the claims of a pod. There are none for an empty UID.
func (d *Driver) prepared(podUID string) ([]Claim, error) {
	if podUID == "" {
		return nil, nil
	}
	return Prepared(d.ctx, d.config.Dir, podUID)
}

// all returns the claims of all pods.
func (d *Driver) all() ([]Claim, error) { return Prepared(d.ctx, d.config.Dir, "") }

// find returns the claim r for each pod for which it is prepared, also if the record is damaged.
func (d *Driver) find(r Ref) (found []Ref, err error) {
	for record, err := range d.config.store().List(d.ctx) {
		switch {
		case record.Key.Network == r.UID:
			r.Pod = record.Key.ContainerID
			found = append(found, r)
		case record.Key == (scratch.Key{}): // the directory
			return nil, err
		}
	}
	return found, nil
}

// put writes the record of a claim, in place of an earlier one for the same pod. It survives a
// loss of power when put returns nil. A record of the same is written as it is.
func (d *Driver) put(ctx context.Context, c Claim) error {
	return d.change(ctx, c.Ref, func(s scratch.Store[storedClaim], l *scratch.Lock) error {
		r, err := s.Get(c.key())
		if errors.Is(err, scratch.ErrCorrupt) {
			if err := s.Forget(l, c.key()); err != nil {
				return err
			}
		}
		r.Key, r.State = c.key(), scratch.Added
		if err != nil || !reflect.DeepEqual(r.Value.Claim, c) {
			r.Value = storedClaim{Claim: c}
		}
		return s.Put(l, r)
	})
}

// release forgets a claim if nothing is attached because of it, and everything that is in memory
// about it. After a loss of power the record may be there again. A damaged record is forgotten too.
// With a since, release does nothing for a claim that was prepared again after that. It then removes
// the files of the claim too, and the caller holds d.mu.
//
// It looks at what is attached while it has the lock of the claim. An ADD records what it attaches
// before it takes that lock in [Driver.Held]: release finds the record, or the ADD finds no claim.
func (d *Driver) release(ctx context.Context, r Ref, since time.Time) (released bool, err error) {
	err = d.change(ctx, r, func(s scratch.Store[storedClaim], l *scratch.Lock) error {
		record, err := s.Get(r.key())
		if errors.Is(err, fs.ErrNotExist) || err == nil && !since.IsZero() && !record.Updated.Equal(since) {
			return nil
		}
		if err := d.config.unattached(ctx, r); err != nil {
			return err
		}
		if !since.IsZero() { // otherwise the kubelet's helper does it, or the next pod has them
			if err := d.removeMetadata(r); err != nil {
				return err
			}
		}
		released = true
		return s.Forget(l, r.key())
	})
	if released && err == nil {
		d.writer.forget(r)
	}
	return released, err
}

// change calls do with the lock of the records of a claim's pod.
func (d *Driver) change(ctx context.Context, r Ref, do func(scratch.Store[storedClaim], *scratch.Lock) error) error {
	store := d.config.store()
	lock, err := store.Lock(ctx, r.Pod)
	if err != nil {
		return err
	}
	return errors.Join(do(store, lock), lock.Unlock())
}
