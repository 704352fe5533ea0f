package netconf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/metacni/metacni/internal/bounds"
)

// A Selection asks for one attachment: it is an element of the annotation
// k8s.v1.cni.cncf.io/networks. Strings are as they were written; a string that is
// not given is empty.
//
// A Selection marshals to the element it was parsed from, without unknown keys.
// Unmarshaling checks it as [ParseSelection] does. Goroutines may share a
// Selection that none of them changes.
type Selection struct {
	// Name is the network's name: a valid CNI network name, never empty.
	Name string `json:"name"`

	// Namespace is the Kubernetes namespace of the network, a DNS label. This
	// package gives it no meaning.
	Namespace string `json:"namespace,omitempty"`

	// Interface is the interface's name in the container. It has at most 15
	// bytes, no path separator and no white space. The kernel has more rules,
	// which are not checked here.
	Interface string `json:"interface,omitempty"`

	// MAC is a hardware address in one of the forms of [net.ParseMAC]: of 6 bytes, or of 20
	// for IP over InfiniBand. It is not zero, and one of 6 bytes is no multicast address.
	MAC string `json:"mac,omitempty"`

	// InfinibandGUID is a GUID of 8 bytes in one of the forms of
	// [net.ParseMAC]. It is not zero.
	InfinibandGUID string `json:"infiniband-guid,omitempty"`

	// DeviceID names a device. Its form is defined by the plugin.
	DeviceID string `json:"deviceID,omitempty"`

	// IPs are addresses, with a prefix length ("10.0.0.5/24") or without. None is there
	// twice, unspecified (0.0.0.0 or ::), or a multicast address.
	IPs []string `json:"ips,omitempty"`

	// PortMappings is an array of objects. Where they have "hostPort" and
	// "containerPort" these are from 1 to 65535 in digits alone, "hostIP" is a string,
	// and "protocol" is TCP, UDP or SCTP in upper or lower case. PortMappings is passed
	// on as it was written, and nil when not given or empty.
	PortMappings json.RawMessage `json:"portMappings,omitempty"`

	// Bandwidth is an object. Its "ingressRate", "egressRate", "ingressBurst"
	// and "egressBurst" are from 1 to 2^63-1 in digits alone, and no burst is there without its rate.
	// A rate of 0 means no limit: it is removed, and so is a burst of 0 without a rate.
	// Otherwise Bandwidth is passed on as it was written. It is nil when not given, or when
	// nothing is left.
	Bandwidth json.RawMessage `json:"bandwidth,omitempty"`

	// CNIArgs ("cni-args") is for the plugin's "args.cni"; nil when not given.
	CNIArgs map[string]json.RawMessage `json:"cni-args,omitzero"`

	// DefaultRoute lists the gateways of the attachment's default routes, at
	// most one of each family, and none multicast. An empty list means the same as nil, no
	// default route, and is what an element with an empty key has.
	DefaultRoute []netip.Addr `json:"default-route,omitzero"`

	// IPAMClaimReference names the IPAMClaim whose addresses the interface gets, in
	// the pod's namespace (NPWG specification 1.3). A selection with IPs has none.
	IPAMClaimReference string `json:"ipam-claim-reference,omitempty"`
}

// ParseSelection parses the value of the annotation k8s.v1.cni.cncf.io/networks,
// in either syntax of the Network Plumbing Working Group's specification: a JSON
// array of objects, or a list "namespace/name@interface" separated by commas,
// in which namespace and interface may be absent or, as in "/name" and "name@",
// empty. An empty string and null select nothing. In an element, "interfaceRequest" is an old
// name for "interface"; keys match in upper and lower case; null is the same as absent; keys that
// are not known are ignored.
//
// Limits: the annotation has at most 256 KiB, 1,000 levels of nesting and 64
// elements. [ParseSelectionN] allows another number of elements.
//
// It fails with [ErrDecode] where JSON is broken, of the wrong types, or has two values for a key. It fails
// with [ErrInvalid] above a limit, where a name, address, GUID, port or rate is not
// valid, where a string has more than 1024 bytes, where an element has both "ips" and
// "ipam-claim-reference" or two gateways of one family, and where more than one element
// has gateways: a container has one default route of each family. The [*Error] names
// the element and the key, as in "[1].mac", and the element's network where that is
// known. Names are never paths.
func ParseSelection(s string) ([]Selection, error) { return ParseSelectionN(s, 0) }

// ParseSelectionN is [ParseSelection] with at most n elements. Zero means 64.
func ParseSelectionN(s string, n int) ([]Selection, error) {
	if err := checkBounds([]byte(s), bounds.Annotation); err != nil {
		return nil, err
	}
	if s = strings.TrimSpace(s); s == "" || s == "null" { // what a controller makes of no list
		return nil, nil
	}
	if !utf8.ValidString(s) {
		return nil, &Error{Kind: ErrDecode, Err: errors.New("not UTF-8")}
	}
	if strings.ContainsAny(s, "[{\"") {
		return parseSelectionJSON([]byte(s), n)
	}
	if err := checkNumber(strings.Count(s, ",")+1, n); err != nil {
		return nil, err
	}
	var selections []Selection
	for i, item := range strings.Split(s, ",") {
		selection, err := parseSelectionName(item)
		if err != nil {
			return nil, under(fmt.Sprintf("[%d]", i), err)
		}
		selections = append(selections, selection)
	}
	return selections, nil
}

// parseSelectionName parses one element of the list form.
func parseSelectionName(item string) (Selection, error) {
	var s Selection
	rest, ifname, _ := strings.Cut(item, "@")
	namespace, name, hasNamespace := strings.Cut(rest, "/")
	if !hasNamespace {
		namespace, name = "", rest
	}
	s.Name = strings.TrimSpace(name)
	s.Namespace = strings.TrimSpace(namespace)
	s.Interface = strings.TrimSpace(ifname)
	for _, part := range []struct {
		key   string
		value *string
	}{{"name", &s.Name}, {"namespace", &s.Namespace}, {"interface", &s.Interface}} {
		if err := checkLength(part.key, part.value); err != nil {
			return s, err
		}
	}
	if strings.Contains(s.Interface, "@") {
		return s, s.fail("interface", fmt.Errorf("%q: more than one @", s.Interface))
	}
	return s, s.validate()
}

// parseSelectionJSON parses the array form.
func parseSelectionJSON(data []byte, n int) ([]Selection, error) {
	if err := checkJSON(data); err != nil {
		return nil, err
	}
	var elements []json.RawMessage
	if err := decodeAs(data, "", "an array", &elements); err != nil {
		return nil, err
	}
	if err := checkNumber(len(elements), n); err != nil {
		return nil, err
	}
	var selections []Selection
	for i, element := range elements {
		s, err := parseSelectionObject(element)
		if err != nil {
			return nil, under(fmt.Sprintf("[%d]", i), err)
		}
		selections = append(selections, s)
	}
	if err := checkGateways(selections); err != nil {
		return nil, err
	}
	return selections, nil
}

// checkNumber fails for more selections than n.
func checkNumber(selections, n int) error {
	if n = cmp.Or(n, bounds.Selections); selections > n {
		return &Error{Kind: ErrInvalid, Err: fmt.Errorf("%d networks are selected, at most %d are allowed", selections, n)}
	}
	return nil
}

// parseSelectionObject parses one element of the array form.
func parseSelectionObject(data []byte) (Selection, error) {
	if err := checkKind(data, "", "an object"); err != nil {
		return Selection{}, err
	}
	keys := splitObject(data)
	maps.DeleteFunc(keys, func(_ string, raw json.RawMessage) bool { return isNull(raw) })
	var s Selection
	var oldInterface string
	var routes []string
	var ports []object
	var rates object
	for _, field := range []struct {
		key, want string
		into      any
	}{
		{"name", "a string", &s.Name},
		{"namespace", "a string", &s.Namespace},
		{"interface", "a string", &s.Interface},
		{"interfaceRequest", "a string", &oldInterface},
		{"mac", "a string", &s.MAC},
		{"infiniband-guid", "a string", &s.InfinibandGUID},
		{"deviceID", "a string", &s.DeviceID},
		{"ips", "an array", &s.IPs},
		{"portMappings", "an array", &ports},
		{"bandwidth", "an object", &rates},
		{"cni-args", "an object", &s.CNIArgs},
		{"default-route", "an array", &routes},
		{"ipam-claim-reference", "a string", &s.IPAMClaimReference},
	} {
		raw, ok, err := keys.find(field.key)
		if err == nil && !ok {
			continue
		}
		if err == nil {
			err = decodeAs(raw, field.key, field.want, field.into)
		}
		if err != nil {
			return Selection{}, inNetwork(keys.nameForErrors(), err)
		}
		if err := checkLength(field.key, field.into); err != nil {
			return Selection{}, err
		}
		switch field.into {
		case &ports:
			s.PortMappings = raw
		case &rates:
			s.Bandwidth = raw
		}
	}
	if s.Interface == "" {
		s.Interface = oldInterface
	}
	if routes != nil {
		s.DefaultRoute = make([]netip.Addr, len(routes))
	}
	for i, route := range routes {
		addr, err := parseAddr(route)
		if err == nil && addr.Unmap().IsMulticast() {
			err = fmt.Errorf("no gateway has the address %s", addr)
		}
		if err != nil {
			return Selection{}, s.fail(fmt.Sprintf("default-route[%d]", i), err)
		}
		s.DefaultRoute[i] = addr
	}
	written := len(rates)
	for _, err := range []error{checkPorts(ports), checkRates(rates)} {
		if err != nil {
			return Selection{}, inNetwork(s.Name, err)
		}
	}
	if len(ports) == 0 {
		s.PortMappings = nil
	}
	if len(rates) == 0 {
		s.Bandwidth = nil
	} else if len(rates) < written {
		s.Bandwidth = rates.marshal()
	}
	return s, s.validate()
}

// UnmarshalJSON parses one element of the array form of [ParseSelection], with
// the same errors; null leaves s as it is.
func (s *Selection) UnmarshalJSON(data []byte) error {
	if isNull(data) {
		return nil
	}
	if err := checkBounds(data, math.MaxInt); err != nil {
		return err
	}
	if err := checkJSON(data); err != nil {
		return err
	}
	parsed, err := parseSelectionObject(data)
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}
