package dra

import (
	"encoding/json"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacni/metacni/netconf"
)

// Attributes returns what a [Device] can say about a network by itself: "plugin", the type of
// its first plugin, and "master", the interface of the node that this plugin uses, if its
// configuration has that key. A value that is too long for an attribute is left out. The caller
// may change the map, which is never nil.
func Attributes(n netconf.Network) map[string]string {
	attributes := map[string]string{}
	if len(n.Plugins()) == 0 {
		return attributes
	}
	first := n.Plugins()[0]
	master := ""
	if raw, ok := first.Get("master"); ok {
		_ = json.Unmarshal(raw, &master) // what is no string is the plugin's business
	}
	for key, value := range map[string]string{"plugin": first.Type(), "master": master} {
		if value != "" && len(value) <= resourcev1.DeviceAttributeMaxValueLength {
			attributes[key] = value
		}
	}
	return attributes
}

// DeviceName makes the name of a [Device] of the name of a network: in lower case, with "-" for
// what a DNS label cannot have, and cut to its length. It is empty if nothing is left.
func DeviceName(network string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, network)
	return strings.Trim(name[:min(len(name), validation.DNS1123LabelMaxLength)], "-")
}
