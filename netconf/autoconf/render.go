package autoconf

import (
	"errors"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/netconf"
)

// A document is a file to publish.
type document struct {
	data    []byte
	network string
	primary string // the file it was made for
}

func (d document) isZero() bool { return d.data == nil }

// newDocument returns the document of template in front of p, as [Manager.Template] says, in
// the form in which every runtime reads it, a list. Without a path p is embedded; otherwise
// path is where the plugin finds it. newDocument fails with [ErrInvalid], also when a runtime
// could not use the document.
func newDocument(template netconf.Plugin, p netconf.File, path string) (document, error) {
	n, err := render(template, p.Network, path)
	if err != nil {
		return document{}, because{ErrInvalid, err}
	}
	data, _ := n.MarshalJSON() // cannot fail
	data = append(data, '\n')
	back, err := netconf.Parse(data)
	if err == nil {
		err = back.Runnable()
	}
	if err != nil {
		return document{}, because{ErrInvalid, err}
	}
	return document{data: data, network: n.Name(), primary: p.Name}, nil
}

// parseDocument returns the network in a document, and its primary network: the embedded one, or the
// name of its file. ok is false unless a runtime and a meta-plugin can use them.
func parseDocument(data []byte) (n netconf.Network, primary netconf.File, ok bool) {
	n, err := netconf.Parse(data)
	if err != nil || n.Runnable() != nil {
		return n, primary, false
	}
	var conf struct {
		Delegates      []netconf.Network
		ClusterNetwork string
	}
	if err := n.Plugins()[0].Decode(&conf); err != nil {
		return n, primary, false
	}
	if len(conf.Delegates) > 0 {
		primary.Network = conf.Delegates[0]
	} else if filepath.IsAbs(conf.ClusterNetwork) {
		primary.Name = filepath.Base(conf.ClusterNetwork)
	}
	return n, primary, primary.Name != "" || primary.Network.Runnable() == nil
}

// render makes the network of template in front of primary.
func render(template netconf.Plugin, primary netconf.Network, path string) (netconf.Network, error) {
	if template.Type() == "" {
		return netconf.Network{}, invalid("type", "missing in the template")
	}
	limits := []string{primary.CNIVersion()}
	if template.Has("cniVersion") {
		limits = append(limits, netconf.Single(template).CNIVersion())
	}
	chosen, err := supported(limits)
	if err != nil {
		return netconf.Network{}, err
	}
	var capabilities []netconf.Edit
	for _, c := range primary.Capabilities() {
		if c != "" {
			capabilities = append(capabilities, netconf.Default(c, true))
		}
	}
	front := netconf.Set("delegates", []netconf.Network{primary})
	if path != "" {
		if !utf8.ValidString(path) {
			return netconf.Network{}, invalid("clusterNetwork", "a path that JSON cannot hold")
		}
		front = netconf.Set("clusterNetwork", path)
	}
	plugin, err := template.Edit(
		netconf.Forbid("delegates", "clusterNetwork"),
		netconf.In("capabilities", capabilities...),
		front,
		netconf.Default("name", primary.Name()),
		netconf.Set("cniVersion", chosen),
	)
	if err != nil {
		return netconf.Network{}, err
	}
	// In a list the two stand in the list's own object.
	return netconf.Single(plugin).EditPlugins(netconf.Remove("name", "cniVersion"))
}

// supported returns the highest version of the protocol that is implemented
// and not above one of the limits.
func supported(limits []string) (string, error) {
	for _, known := range slices.Backward(version.All.SupportedVersions()) {
		fits := true
		for _, limit := range limits {
			ok, err := version.GreaterThanOrEqualTo(limit, known)
			if err != nil {
				return "", invalid("cniVersion", "not a version")
			}
			fits = fits && ok
		}
		if fits {
			return known, nil
		}
	}
	return "", invalid("cniVersion", "below all that are implemented")
}

func invalid(key, why string) error {
	return &netconf.Error{Kind: netconf.ErrInvalid, Key: key, Err: errors.New(why)}
}
