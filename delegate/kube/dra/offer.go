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

	// Device is the name of the device. Empty means that it is made of Network, see
	// [Offer.Name].
	Device string `json:"device"`

	// Exclusive and Attributes are those of the [Device].
	Exclusive  bool              `json:"exclusive"`
	Attributes map[string]string `json:"attributes"`
}

// The attributes that every device may have.
const (
	attributePlugin = "plugin"
	attributeMaster = "master"
)

// CheckOffers fails for a list of which no API server would take the devices, and for a network
// or a device that is there twice. The error names the element.
func CheckOffers(all []Offer) error {
	networks, devices := map[string]bool{}, map[string]bool{}
	for i, o := range all {
		err := o.check()
		switch {
		case err != nil:
		case networks[o.Network]:
			err = fmt.Errorf("network %q is listed twice", o.Network)
		case devices[o.Name()]:
			err = fmt.Errorf("two networks are the device %q", o.Name())
		}
		if err != nil {
			return fmt.Errorf("networks[%d]: %w", i, err)
		}
		networks[o.Network], devices[o.Name()] = true, true
	}
	return nil
}

func (o Offer) check() error {
	if o.Network == "" {
		return errors.New("network: missing")
	}
	if _, ok := o.Definition(); !ok && strings.Contains(o.Network, "/") {
		return fmt.Errorf("network %q is not namespace/name of a NetworkAttachmentDefinition", o.Network)
	}
	full := map[string]string{attributePlugin: "", attributeMaster: ""}
	maps.Copy(full, o.Attributes)
	return Device{Name: o.Name(), Attributes: full}.check()
}

// Definition returns the NetworkAttachmentDefinition that o names, if it names one.
func (o Offer) Definition() (nad.Ref, bool) {
	r, err := nad.ParseRef(o.Network, "")
	return r, err == nil
}

// Name returns the name of the device. If o.Device is empty it is made of the name of the
// network, without its namespace: in lower case, with "-" for what a DNS label cannot have, and
// cut to its length.
func (o Offer) Name() string {
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

// As returns the device of o for [Driver.Publish]. n is the network, which may be zero, and err
// is why pods cannot be attached to it. The device has the attributes of o, and those that o
// does not have of these: "plugin", the type of the first plugin, and "master", its key of
// that name, unless the value is too long.
func (o Offer) As(n netconf.Network, err error) Device {
	d := Device{Name: o.Name(), Exclusive: o.Exclusive, Attributes: map[string]string{}, Err: err}
	if plugins := n.Plugins(); len(plugins) > 0 {
		master := ""
		if raw, ok := plugins[0].Get("master"); ok {
			_ = json.Unmarshal(raw, &master) // what is no string is the plugin's business
		}
		for key, value := range map[string]string{attributePlugin: plugins[0].Type(), attributeMaster: master} {
			if value != "" && len(value) <= resourcev1.DeviceAttributeMaxValueLength {
				d.Attributes[key] = value
			}
		}
	}
	maps.Copy(d.Attributes, o.Attributes)
	return d
}
