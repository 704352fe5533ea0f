package dra

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// An Offer is a network that a node offers to the scheduler, as the configuration of a daemon
// says it in JSON.
type Offer struct {
	// Network is namespace/name of a NetworkAttachmentDefinition, or a name that the daemon
	// knows.
	Network string `json:"network"`

	// Device is the name of the device, a DNS label. Empty means that it is made of Network,
	// without its namespace: in lower case, with "-" for what a label cannot have, and cut to
	// its length.
	Device string `json:"device"`

	// Exclusive means that only one claim at a time can have the network. Otherwise any
	// number of claims share it.
	Exclusive bool `json:"exclusive"`

	// Attributes are what DeviceClasses and claims select by. A name without a domain is in
	// that of the driver. A value has at most 64 bytes. Every device has the attributes
	// "plugin", the type of the network's first plugin, and "master", its key of that name,
	// unless they are here or the value is too long.
	Attributes map[string]string `json:"attributes"`
}

// The attributes that every device may have.
const (
	attributePlugin = "plugin"
	attributeMaster = "master"
)

// Check fails for a driver with a name that no driver can have, which is a DNS subdomain of at most
// 63 bytes, for networks of which no API server would take the devices, and for a network or a
// device that is there twice. The error names the element.
func Check(driver string, networks []Offer) error {
	if len(validation.IsDNS1123Subdomain(driver)) > 0 || len(driver) > resourcev1.DriverNameMaxLength {
		return fmt.Errorf("driver %q is not a DNS subdomain of at most %d characters", driver, resourcev1.DriverNameMaxLength)
	}
	return checkOffers(networks)
}

func checkOffers(all []Offer) error {
	networks, devices := map[string]bool{}, map[string]bool{}
	for i, o := range all {
		err := o.check()
		switch {
		case err != nil:
		case networks[o.Network]:
			err = fmt.Errorf("network %q is listed twice", o.Network)
		case devices[o.name()]:
			err = fmt.Errorf("two networks are the device %q", o.name())
		}
		if err != nil {
			return fmt.Errorf("networks[%d]: %w", i, err)
		}
		networks[o.Network], devices[o.name()] = true, true
	}
	return nil
}

func (o Offer) check() error {
	if o.Network == "" {
		return errors.New("network: missing")
	}
	if _, ok := o.definition(); !ok && strings.Contains(o.Network, "/") {
		return fmt.Errorf("network %q is not namespace/name of a NetworkAttachmentDefinition", o.Network)
	}
	full := map[string]string{attributePlugin: "", attributeMaster: ""}
	maps.Copy(full, o.Attributes)
	return device{name: o.name(), attributes: full}.check()
}

// definition returns the NetworkAttachmentDefinition that o names, if it names one.
func (o Offer) definition() (nad.Ref, bool) {
	r, err := nad.ParseRef(o.Network, "")
	return r, err == nil
}

// name returns the name of the device.
func (o Offer) name() string {
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '-':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, path.Base(o.Network))
	return cmp.Or(o.Device, strings.Trim(name[:min(len(name), validation.DNS1123LabelMaxLength)], "-"))
}

// as returns the device of o. n is the network, which may be zero, and err is why pods cannot be
// attached to it.
func (o Offer) as(n netconf.Network, err error) device {
	d := device{name: o.name(), exclusive: o.Exclusive, attributes: map[string]string{}, err: err}
	if plugins := n.Plugins(); len(plugins) > 0 {
		master := ""
		if raw, ok := plugins[0].Get("master"); ok {
			_ = json.Unmarshal(raw, &master) // what is no string is the plugin's business
		}
		for key, value := range map[string]string{attributePlugin: plugins[0].Type(), attributeMaster: master} {
			if value != "" && len(value) <= resourcev1.DeviceAttributeMaxValueLength {
				d.attributes[key] = value
			}
		}
	}
	maps.Copy(d.attributes, o.Attributes)
	return d
}
