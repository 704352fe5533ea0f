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

// maxAttributes of a device are a limit of the API.
const maxAttributes = 32

// Check fails for a driver with a name that no driver can have, which is a DNS subdomain of at most
// 63 bytes, for networks of which no API server would take the devices, and for a network or a
// device that is there twice. The error names the element.
func Check(driver string, networks []Offer) error {
	if len(validation.IsDNS1123Subdomain(driver)) > 0 || len(driver) > resourcev1.DriverNameMaxLength {
		return fmt.Errorf("driver %q is not a DNS subdomain of at most %d characters", driver, resourcev1.DriverNameMaxLength)
	}
	listed, devices := map[string]bool{}, map[string]bool{}
	for i, o := range networks {
		err := o.check()
		switch {
		case err != nil:
		case listed[o.Network]:
			err = fmt.Errorf("network %q is listed twice", o.Network)
		case devices[o.name()]:
			err = fmt.Errorf("two networks are the device %q", o.name())
		}
		if err != nil {
			return fmt.Errorf("networks[%d]: %w", i, err)
		}
		listed[o.Network], devices[o.name()] = true, true
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
	if why := validation.IsDNS1123Label(o.name()); len(why) > 0 {
		return fmt.Errorf("device %q: %s", o.name(), why[0])
	}
	full := map[string]string{attributePlugin: "", attributeMaster: ""}
	maps.Copy(full, o.Attributes)
	if len(full) > maxAttributes {
		return fmt.Errorf("device %q: %d attributes, at most %d are possible", o.name(), len(full), maxAttributes)
	}
	for key, value := range full {
		domain, id, qualified := strings.Cut(key, "/")
		if !qualified {
			domain, id = "", key
		}
		if qualified && (len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourcev1.DeviceMaxDomainLength) ||
			len(validation.IsCIdentifier(id)) > 0 || len(id) > resourcev1.DeviceMaxIDLength {
			return fmt.Errorf("device %q: %q is no name of an attribute", o.name(), short(key))
		}
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			return fmt.Errorf("device %q: attribute %q is longer than %d bytes", o.name(), key, resourcev1.DeviceAttributeMaxValueLength)
		}
	}
	return nil
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

// device returns the device of o. n is the network, which may be zero.
func (o Offer) device(n netconf.Network) resourcev1.Device {
	attributes := map[string]string{}
	if plugins := n.Plugins(); len(plugins) > 0 {
		master := ""
		if raw, ok := plugins[0].Get("master"); ok {
			_ = json.Unmarshal(raw, &master) // what is no string is the plugin's business
		}
		for key, value := range map[string]string{attributePlugin: plugins[0].Type(), attributeMaster: master} {
			if value != "" && len(value) <= resourcev1.DeviceAttributeMaxValueLength {
				attributes[key] = value
			}
		}
	}
	maps.Copy(attributes, o.Attributes)
	d := resourcev1.Device{Name: o.name()}
	for key, value := range attributes {
		if d.Attributes == nil {
			d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
		}
		d.Attributes[resourcev1.QualifiedName(key)] = resourcev1.DeviceAttribute{StringValue: &value}
	}
	if !o.Exclusive {
		d.AllowMultipleAllocations = new(true)
	}
	return d
}
