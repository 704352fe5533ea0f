package plugin

import (
	"encoding/json"
	"fmt"

	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A choice is one network that a container is to be attached to, and who has chosen it.
type choice struct {
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
func (ch choice) ofPod() bool { return ch.selection.Name != "" }

// ofUser reports whether a user says which network it is, in a pod or in a claim.
func (ch choice) ofUser() bool { return ch.ofPod() || ch.use == nad.UseClaimed }

// checkInterface fails if no interface can have the name that a user gives to that of ch.
func (ch choice) checkInterface() error {
	if ch.ifName == "" {
		return nil
	}
	if err := ifname.Validate(ch.ifName); err != nil {
		return &netconf.Error{Kind: netconf.ErrInvalid, Network: ch.selection.Name, Key: "interface", Err: err}
	}
	return nil
}

// origin returns what the record says about why the container is attached.
func (ch choice) origin(podSource string) json.RawMessage {
	d := ch.definition
	o := nad.Origin{Use: ch.use, Definition: d.Ref, UID: d.UID, Version: d.Version, Claim: ch.claim, PodSource: podSource}
	if d.Resource != "" {
		o.Resource, o.Device = d.Resource, ch.device
	}
	if ch.ofPod() {
		o.Selection, _ = json.Marshal(ch.selection) // cannot fail: it was parsed
	}
	return o.JSON()
}

// Several networks may have the same name, and people know them by others. So the errors of an
// ADD say which selection, claim or key of the configuration asks for the network.

// about returns err with the words by which people know ch.
func (c *config) about(ch choice, err error) error {
	switch {
	case err == nil:
		return nil
	case ch.use == nad.UsePodDefault:
		return fmt.Errorf("annotation %s: network %q: %w", nad.DefaultNetworkAnnotation, ch.selection.Name, err)
	case ch.ofPod():
		return fmt.Errorf("selected network %q: %w", ch.selection.Name, err)
	case ch.use == nad.UseClaimed:
		return fmt.Errorf("%v: %w", ch.claim, err)
	case ch.key != "delegates":
		return fmt.Errorf("network %q: %s %q: %w", c.call.Name, ch.key, ch.name, err)
	}
	return err
}
