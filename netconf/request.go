package netconf

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/rawjson"
)

// A Request is what an invocation adds to a plugin configuration. The zero
// Request adds only the network's name and version.
type Request struct {
	// PrevResult, a JSON object, becomes "prevResult". Nil, or a JSON null,
	// leaves the plugin's own, if any.
	PrevResult json.RawMessage

	// CapabilityArgs become "runtimeConfig", each only where the plugin
	// declares the capability of that name. A plugin that declares none of
	// them keeps the "runtimeConfig" it has, if any.
	CapabilityArgs map[string]json.RawMessage

	// ValidAttachments, when not nil, becomes "cni.dev/valid-attachments" and,
	// as libcni does for plugins that follow an older text of the
	// specification, "cni.dev/attachments".
	ValidAttachments []types.GCAttachment
}

// Request derives the request configuration of the i'th plugin, what it
// receives on stdin (SPEC section 3, "Deriving request configuration from
// plugin configuration"): its own keys, "name", "cniVersion", which is
// [Network.CNIVersion], and what r adds. "capabilities" stays, as in libcni.
//
// It fails with [ErrInvalid] when there is no i'th plugin, the plugin has no
// type, or the network no valid name, and with [ErrDecode] when r holds what is
// not JSON.
func (n Network) Request(i int, r Request) ([]byte, error) {
	if err := n.requestable(i); err != nil {
		return nil, err
	}
	keys := n.plugins[i].keys.shallow()
	if err := r.addTo(keys, n.plugins[i].Capabilities()); err != nil {
		return nil, inNetwork(n.Name(), under(pluginKey(i), err))
	}
	keys.set("name", encodeString(n.Name()))
	keys.set("cniVersion", encodeString(n.CNIVersion()))
	return keys.marshal(), nil
}

// CheckRequest fails as Request would for some plugin of n, or because n has no
// plugins, at a fraction of the cost. It also fails with [ErrInvalid] if n is larger
// than [Parse] allows, which edits can make it.
func (n Network) CheckRequest(r Request) error {
	if len(n.plugins) == 0 {
		return n.requestable(0)
	}
	if n.size() > bounds.Network {
		return n.fail(ErrInvalid, "", bounds.Above(bounds.Network))
	}
	for i, p := range n.plugins {
		if err := n.requestable(i); err != nil {
			return err
		}
		if _, err := r.runtimeConfig(p.Capabilities()); err != nil {
			return inNetwork(n.Name(), under(pluginKey(i), err))
		}
	}
	if err := r.checkPrevResult(); err != nil {
		return inNetwork(n.Name(), under(pluginKey(0), err))
	}
	return nil
}

// requestable fails where there is no i'th plugin that could be run.
func (n Network) requestable(i int) error {
	switch {
	case n.invalid != nil:
		return n.invalid
	case i < 0 || i >= len(n.plugins):
		return n.fail(ErrInvalid, "plugins", fmt.Errorf("no plugin %d of %d", i, len(n.plugins)))
	case n.list.name == "":
		return n.fail(ErrInvalid, "name", errMissing)
	}
	return inNetwork(n.Name(), under(pluginKey(i), n.plugins[i].requireType()))
}

// addTo stores what r adds in keys, those of a plugin with the given
// capabilities.
func (r Request) addTo(keys object, capabilities []string) error {
	if err := r.checkPrevResult(); err != nil {
		return err
	}
	if r.hasPrevResult() {
		keys.set("prevResult", splitObject(r.PrevResult).marshal())
	}
	runtimeConfig, err := r.runtimeConfig(capabilities)
	if err != nil {
		return err
	}
	if len(runtimeConfig) > 0 {
		keys.set("runtimeConfig", runtimeConfig.marshal())
	}
	if r.ValidAttachments != nil {
		valid, err := rawjson.Marshal(r.ValidAttachments)
		if err != nil {
			return &Error{Kind: ErrInvalid, Key: "cni.dev/valid-attachments", Err: err}
		}
		keys["cni.dev/valid-attachments"] = valid
		keys["cni.dev/attachments"] = valid
	}
	return nil
}

func (r Request) hasPrevResult() bool { return len(r.PrevResult) > 0 && !isNull(r.PrevResult) }

func (r Request) checkPrevResult() error {
	if !r.hasPrevResult() {
		return nil
	}
	err := checkBounds(r.PrevResult, math.MaxInt)
	if err == nil {
		err = checkObject(r.PrevResult)
	}
	return under("prevResult", err)
}

// runtimeConfig returns the capability arguments for a plugin with the given
// capabilities.
func (r Request) runtimeConfig(capabilities []string) (object, error) {
	args := object{}
	for _, name := range capabilities {
		arg, ok := r.CapabilityArgs[name]
		if !ok {
			continue
		}
		if arg == nil {
			arg = json.RawMessage("null")
		}
		if err := checkJSON(arg); err != nil {
			return nil, under("runtimeConfig", under(name, err))
		}
		args[name] = compact(arg)
	}
	return args, nil
}
