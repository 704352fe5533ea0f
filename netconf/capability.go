package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/metacni/metacni/internal/rawjson"
)

// claimReference is a key of a selection, of "args.cni", and a capability.
const claimReference = "ipam-claim-reference"

// CapabilityArgs returns what s asks for as capability arguments, under the
// names of CNI's CONVENTIONS.md: "mac", "ips", "portMappings", "bandwidth",
// "infinibandGUID" and "deviceID", and "ipam-claim-reference" under its own name. It has
// only those that s gives, and is nil when s gives none. "cni-args" and "default-route"
// are not capability arguments.
func (s Selection) CapabilityArgs() map[string]json.RawMessage {
	args := object{"portMappings": bytes.Clone(s.PortMappings), "bandwidth": bytes.Clone(s.Bandwidth)}
	for key, value := range map[string]string{
		"mac": s.MAC, "infinibandGUID": s.InfinibandGUID, "deviceID": s.DeviceID, claimReference: s.IPAMClaimReference,
	} {
		if value != "" {
			args[key] = encodeString(value)
		}
	}
	if len(s.IPs) > 0 {
		args["ips"], _ = rawjson.Marshal(s.IPs) // cannot fail: strings
	}
	maps.DeleteFunc(args, func(_ string, raw json.RawMessage) bool { return len(raw) == 0 })
	if len(args) == 0 {
		return nil
	}
	return args
}

// LegacyArgs returns args, the value of CNI_ARGS for an attachment, with what s asks
// for as IP=…,… and MAC=…, which replace those that args has. A key that s does not
// ask for stays as it is in args, and so does everything else. Older plugins, such as
// macvlan and static, read these instead of capability arguments.
//
// A program that passes LegacyArgs serves "ips" and "mac", see [Selection.ServedBy].
func (s Selection) LegacyArgs(args string) string {
	for _, arg := range []struct{ key, value string }{{"IP", strings.Join(s.IPs, ",")}, {"MAC", s.MAC}} {
		if arg.value == "" {
			continue
		}
		var pairs []string
		for pair := range strings.SplitSeq(args, ";") {
			if key, _, _ := strings.Cut(pair, "="); key != arg.key && pair != "" {
				pairs = append(pairs, pair)
			}
		}
		args = strings.Join(append(pairs, arg.key+"="+arg.value), ";")
	}
	return args
}

// Edits returns the edits that s makes to each plugin of its network, for
// [Network.EditPlugins]: each key of "cni-args" is set in "args.cni", and so is
// "ipam-claim-reference", which wins over the same key of "cni-args". IPAM plugins read
// the claim there (whereabouts#742). It is nil when there is nothing to change.
func (s Selection) Edits() []Edit {
	var sets []Edit
	if len(s.CNIArgs) > 0 { // with any keys, also an empty one, and in the case that each has
		sets = append(sets, func(keys map[string]json.RawMessage) error {
			maps.Copy(keys, s.CNIArgs)
			return nil
		})
	}
	if s.IPAMClaimReference != "" {
		sets = append(sets, Set(claimReference, s.IPAMClaimReference))
	}
	if sets == nil {
		return nil
	}
	return []Edit{In("args", In("cni", sets...))}
}

// ServedBy fails with [ErrInvalid] unless for each of [Selection.CapabilityArgs]
// some plugin of n declares the capability. Without this check the argument would
// be dropped silently, and the pod would start without the address or port it
// asked for. Call ServedBy before anything is attached. The [*Error] names the
// selection's network and key. "ipam-claim-reference" needs no capability, because
// [Selection.Edits] serves it.
//
// A program that serves a key in another way clears that field in a copy of s
// first.
func (s Selection) ServedBy(n Network) error {
	declared := n.Capabilities()
	s.IPAMClaimReference = ""
	args := object(s.CapabilityArgs())
	for _, capability := range args.sorted() {
		if slices.Contains(declared, capability) {
			continue
		}
		key := capability
		if capability == "infinibandGUID" {
			key = "infiniband-guid"
		}
		return s.fail(key, fmt.Errorf(
			`asked for, but no plugin of the network has "capabilities":{%q:true}: add that to the plugin that supports it, or ask without the key`,
			capability))
	}
	return nil
}
