package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// PrevResult returns prevResult of the configuration: the result of the plugins before
// this one in its chain, or, for CHECK and DEL, of the whole chain. It returns nil if
// there is none. If it cannot be decoded, PrevResult fails with [netconf.ErrDecode].
func (c *Call) PrevResult() (*types100.Result, error) {
	prev, err := c.prevResult()
	if err != nil || prev == nil {
		return nil, err
	}
	r, err := (delegate.Attached{Result: prev}).ParsedResult()
	if err != nil {
		return nil, err
	}
	return types100.NewResultFromResult(r)
}

// Print prints r as the answer to an ADD, in the version of c. It fails with CNI code 1 if
// the version cannot express r.
func (c *Call) Print(r types.Result) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return (delegate.Attached{Result: text}).PrintTo(c.System.Stdout, c.CNIVersion)
}

// prevResult returns the result of the plugin before this one in its chain, in the
// version of c. It returns nil if this plugin is the first, or if the version has no
// chains: they came with 0.3.0. A step is in a chain whatever the version.
func (c *Call) prevResult() (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	err := c.Value("prevResult", &keys)
	if chains, _ := version.GreaterThanOrEqualTo(c.CNIVersion, "0.3.0"); err != nil || keys == nil || !chains && c.step() == "" {
		return nil, err
	}
	if keys["cniVersion"] == nil {
		keys["cniVersion"], _ = json.Marshal(c.CNIVersion) // a string always marshals
	}
	text, _ := json.Marshal(keys) // they were decoded
	var prev bytes.Buffer
	if err := (delegate.Attached{Result: text}).PrintTo(&prev, c.CNIVersion); err != nil {
		if about := (*delegate.Error)(nil); errors.As(err, &about) {
			err = about.Err // it has no other field that says more
		}
		return nil, &netconf.Error{Kind: netconf.ErrDecode, Network: c.Name, Key: "prevResult", Err: err}
	}
	return prev.Bytes(), nil
}

// print prints the result of what was added. In a chain the interfaces, addresses, routes and
// DNS settings of prev come first.
func (c *Call) print(ctx context.Context, prev json.RawMessage, added []delegate.Attached) (err error) {
	a := added[0]
	if c.result != nil {
		if a.Result, err = c.result(ctx, c, added); err != nil {
			return err
		}
	}
	debug := c.System.Logger != nil && c.System.Logger.Enabled(ctx, slog.LevelDebug)
	if prev != nil || debug {
		var own bytes.Buffer
		if err := a.PrintTo(&own, c.CNIVersion); err != nil {
			return err
		}
		lost := slices.DeleteFunc([]string{"mtu", "pciID", "socketPath"}, func(key string) bool { // CNI 1.1 has added them
			return bytes.Count(own.Bytes(), []byte(strconv.Quote(key))) >= bytes.Count(a.Result, []byte(strconv.Quote(key)))
		})
		if debug && len(lost) > 0 {
			c.System.Logger.LogAttrs(ctx, slog.LevelDebug, "the version of the runtime has no place for keys of the result",
				slog.String("container", c.ContainerID), slog.String("ifname", c.IfName), slog.String("version", c.CNIVersion), slog.Any("keys", lost))
		}
		if prev != nil {
			a.Result = chained(prev, own.Bytes())
		}
	}
	return a.PrintTo(c.System.Stdout, c.CNIVersion)
}

// Merge returns a result with the interfaces, addresses, routes and DNS settings of all of added,
// in this order, for [Plugin.Result]: in the version of c, or the newest if that has no lists of
// interfaces. The domain is the first one. Other keys are those of the last result that has them.
// An address stays on its interface. Merge fails as [delegate.Attached.PrintTo] does.
func (c *Call) Merge(added ...delegate.Attached) (json.RawMessage, error) {
	as := c.CNIVersion
	if lists, _ := version.GreaterThanOrEqualTo(as, "0.3.0"); !lists {
		as = version.Current()
	}
	merged := json.RawMessage(`{"cniVersion":"` + as + `"}`)
	for _, a := range added {
		var own bytes.Buffer
		if err := a.PrintTo(&own, as); err != nil {
			return nil, err
		}
		merged = chained(merged, own.Bytes())
	}
	return merged, nil
}

// A chainedResult is the part of a result that is added to prevResult.
type chainedResult struct {
	Interfaces []json.RawMessage            `json:"interfaces,omitempty"`
	IPs        []map[string]json.RawMessage `json:"ips,omitempty"`
	Routes     []json.RawMessage            `json:"routes,omitempty"`
	DNS        struct {
		Nameservers []string `json:"nameservers,omitempty"`
		Domain      string   `json:"domain,omitempty"`
		Search      []string `json:"search,omitempty"`
		Options     []string `json:"options,omitempty"`
	} `json:"dns,omitzero"`
}

// chained returns the result prev followed by own. Both have been decoded, and have
// one version, from 0.3.0 on. Other keys are those of own, or else of prev.
func chained(prev, own []byte) json.RawMessage {
	var all, added chainedResult
	var keys map[string]json.RawMessage
	for _, text := range []struct {
		from []byte
		to   any
	}{{prev, &all}, {own, &added}, {prev, &keys}, {own, &keys}} {
		_ = json.Unmarshal(text.from, text.to) // they were decoded
	}
	for _, ip := range added.IPs {
		for key, value := range ip {
			var index int
			if strings.EqualFold(key, "interface") && json.Unmarshal(value, &index) == nil && string(value) != "null" {
				ip[key], _ = json.Marshal(index + len(all.Interfaces))
			}
		}
	}
	all.Interfaces = append(all.Interfaces, added.Interfaces...)
	all.IPs = append(all.IPs, added.IPs...)
	all.Routes = append(all.Routes, added.Routes...)
	all.DNS.Nameservers = append(all.DNS.Nameservers, added.DNS.Nameservers...)
	all.DNS.Search = append(all.DNS.Search, added.DNS.Search...)
	all.DNS.Options = append(all.DNS.Options, added.DNS.Options...)
	all.DNS.Domain = cmp.Or(all.DNS.Domain, added.DNS.Domain)

	known := []string{"interfaces", "ips", "routes", "dns"}
	maps.DeleteFunc(keys, func(key string, _ json.RawMessage) bool {
		return slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(key, name) })
	})
	text, _ := json.Marshal(all) // cannot fail, like the next two
	_ = json.Unmarshal(text, &keys)
	text, _ = json.Marshal(keys)
	return text
}
