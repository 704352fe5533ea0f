package autoconf

import (
	"errors"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/netconf"
)

// render makes the network of template in front of p, as [Manager.Template] says.
// It fails with [ErrInvalid].
func render(template netconf.Plugin, p candidate) (netconf.Network, error) {
	n, err := networkOf(template, p)
	if err != nil {
		return netconf.Network{}, fail("render", p.Name, because{ErrInvalid, err})
	}
	return n, nil
}

func networkOf(template netconf.Plugin, p candidate) (netconf.Network, error) {
	if template.Type() == "" {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, Key: "type", Err: errors.New("missing in the template")}
	}
	chosen, err := supported(p.Network.CNIVersion())
	if err != nil {
		return netconf.Network{}, err
	}
	if template.Has("cniVersion") || template.Has("cniVersions") {
		// The version a lone plugin stands for is that of a network of it.
		limit, err := supported(netconf.Single(template).CNIVersion())
		if err != nil {
			return netconf.Network{}, err
		}
		if above, _ := version.GreaterThan(chosen, limit); above {
			chosen = limit
		}
	}
	var capabilities []netconf.Edit
	for _, c := range p.Network.Capabilities() {
		if c != "" {
			capabilities = append(capabilities, netconf.Default(c, true))
		}
	}
	if !utf8.ValidString(p.path) {
		return netconf.Network{}, &netconf.Error{Kind: netconf.ErrInvalid, Key: "clusterNetwork", Err: errors.New("a path that JSON cannot hold")}
	}
	primary := netconf.Set("delegates", []netconf.Network{p.Network})
	if p.path != "" {
		primary = netconf.Set("clusterNetwork", p.path)
	}
	plugin, err := template.Edit(
		netconf.Forbid("delegates", "clusterNetwork"),
		netconf.In("capabilities", capabilities...),
		primary,
		netconf.Default("name", p.Network.Name()),
		netconf.Remove("cniVersions"),
		netconf.Set("cniVersion", chosen),
	)
	if err != nil {
		return netconf.Network{}, err
	}
	// In a list the two stand in the list's own object.
	return netconf.Single(plugin).EditPlugins(netconf.Remove("name", "cniVersion"))
}

// supported returns the highest version of the protocol that is implemented
// and not above v.
func supported(v string) (string, error) {
	best := ""
	for _, known := range version.All.SupportedVersions() {
		ok, err := version.GreaterThanOrEqualTo(v, known)
		if err != nil {
			return "", &netconf.Error{Kind: netconf.ErrInvalid, Key: "cniVersion", Err: errors.New("not a version")}
		}
		if ok {
			best = known
		}
	}
	if best == "" {
		return "", &netconf.Error{Kind: netconf.ErrInvalid, Key: "cniVersion", Err: errors.New("below all that are implemented")}
	}
	return best, nil
}

// A document is a file to publish.
type document struct {
	data    []byte
	network string
	primary string // the file it was made for
}

func (d document) isZero() bool { return d.data == nil }

// write gives n the form in which every runtime reads it, a list. It fails when a runtime
// could not use it.
func write(n netconf.Network) (document, error) {
	data, _ := n.MarshalJSON() // cannot fail
	doc := document{network: n.Name(), data: append(data, '\n')}
	back, err := netconf.Parse(doc.data)
	if err == nil { // libcni cannot read a number that is larger than any that Go has
		_, err = netconf.Decode[map[string]any](doc.data)
	}
	if err == nil {
		_, err = back.Request(0, netconf.Request{})
	}
	if err == nil && len(doc.data) > sizeLimit {
		err = errTooLarge
	}
	if err != nil {
		return document{}, because{ErrInvalid, err}
	}
	return doc, nil
}
