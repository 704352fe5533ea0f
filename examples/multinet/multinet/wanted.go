package multinet

import (
	"encoding/json"
	"fmt"

	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A wanted network is one that a container is to be attached to.
type wanted struct {
	use nad.Use

	// The configuration wants a network that it defines, or names by a key.
	network   netconf.Network
	key, name string

	// A pod wants the network that it selects. The ref is that of the definition, or
	// zero outside of Kubernetes, where networks are files.
	selection netconf.Selection
	ref       nad.Ref

	// A ResourceClaim wants a network that it has itself, or the definition ref.
	claim nad.Claim

	// The interface that it is to be attached to. Empty means any.
	ifName string

	// What it is found to be: network, of a definition unless that is zero, with a device
	// unless that is empty.
	definition nad.Definition
	device     string
}

// ofPod reports whether a pod selects the network.
func (w wanted) ofPod() bool { return w.selection.Name != "" }

// ofUser reports whether a user says which network it is, in a pod or in a claim.
func (w wanted) ofUser() bool { return w.ofPod() || w.use == nad.Claimed }

// checkInterface fails if no interface can have the name that a user gives to that of w.
func (w wanted) checkInterface() error {
	if w.ifName == "" {
		return nil
	}
	if err := ifname.Validate(w.ifName); err != nil {
		return &netconf.Error{Kind: netconf.ErrInvalid, Network: w.selection.Name, Key: "interface", Err: err}
	}
	return nil
}

// origin returns what the record says about why the container is attached.
func (w wanted) origin(podSource string) json.RawMessage {
	d := w.definition
	o := nad.Origin{Use: w.use, Definition: d.Ref, UID: d.UID, Version: d.Version, Claim: w.claim, PodSource: podSource}
	if d.Resource != "" {
		o.Resource, o.Device = d.Resource, w.device
	}
	if w.ofPod() {
		o.Selection, _ = json.Marshal(w.selection) // cannot fail: it was parsed
	}
	return o.JSON()
}

// Several networks may have the same name, and people know them by others. So the errors of an
// ADD say which selection, claim or key of the configuration asks for the network.

// about returns err with the words by which people know w.
func (c *config) about(w wanted, err error) error {
	switch {
	case err == nil:
		return nil
	case w.use == nad.PodDefault:
		return fmt.Errorf("annotation %s: network %q: %w", nad.DefaultNetworkAnnotation, w.selection.Name, err)
	case w.ofPod():
		return fmt.Errorf("selected network %q: %w", w.selection.Name, err)
	case w.use == nad.Claimed:
		return fmt.Errorf("%v: %w", w.claim, err)
	case w.name != "":
		return fmt.Errorf("network %q: %s %q: %w", c.call.Name, w.key, w.name, err)
	}
	return err
}
