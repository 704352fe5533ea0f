package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/internal/kubename"
)

// checkGateways fails if more than one selection has a gateway in DefaultRoute. A
// container has one default route of each family, and the last selection would win.
func checkGateways(selections []Selection) error {
	routed := -1 // the one with the default route
	for i, s := range selections {
		if len(s.DefaultRoute) == 0 {
			continue
		}
		if routed >= 0 {
			err := s.fail("default-route", fmt.Errorf("element [%d] has gateways already, and only one may have them", routed))
			return under(fmt.Sprintf("[%d]", i), err)
		}
		routed = i
	}
	return nil
}

// longest is the number of bytes that a string in a selection may have. None that is
// valid has as many, and errors quote them.
const longest = 1024

// checkLength fails if value, a pointer to what key has, is or has a string that is too
// long.
func checkLength(key string, value any) error {
	tooLong := func(key string) error {
		return &Error{Kind: ErrInvalid, Key: key, Err: fmt.Errorf("longer than %d bytes", longest)}
	}
	switch v := value.(type) {
	case *string:
		if len(*v) > longest {
			return tooLong(key)
		}
	case *[]string:
		for i, s := range *v {
			if len(s) > longest {
				return tooLong(fmt.Sprintf("%s[%d]", key, i))
			}
		}
	}
	return nil
}

// validate checks the names and addresses of s.
func (s Selection) validate() error {
	if s.Name == "" {
		return s.fail("name", errMissing)
	}
	if namespace, name, _ := strings.Cut(s.Name, "/"); s.Namespace == "" && kubename.IsNamespace(namespace) && utils.ValidateNetworkName(name) == nil {
		return s.fail("name", fmt.Errorf(`not the name of a network: want "name": %q, "namespace": %q`, name, namespace))
	}
	if err := validateName(s.Name); err != nil {
		return err
	}
	if s.Namespace != "" && !kubename.IsNamespace(s.Namespace) {
		return s.fail("namespace", fmt.Errorf("%q is not a DNS label", s.Namespace))
	}
	if s.Interface != "" {
		if err := utils.ValidateInterfaceName(s.Interface); err != nil {
			return s.fail("interface", fmt.Errorf("%q: %w", s.Interface, err))
		}
	}
	if err := validateMAC(s.MAC); err != nil {
		return s.fail("mac", err)
	}
	if s.InfinibandGUID != "" {
		if guid, err := net.ParseMAC(s.InfinibandGUID); err != nil || len(guid) != 8 || isZero(guid) {
			return s.fail("infiniband-guid", fmt.Errorf("%q is not a GUID of 8 bytes, which are not all 0", s.InfinibandGUID))
		}
	}
	given := map[netip.Addr]bool{}
	for i, ip := range s.IPs {
		addr, err := parseIP(ip)
		if err == nil && given[addr] {
			err = fmt.Errorf("%s is there twice", addr)
		}
		if err != nil {
			return s.fail(fmt.Sprintf("ips[%d]", i), err)
		}
		given[addr] = true
	}
	seen := map[string]bool{}
	for i, gateway := range s.DefaultRoute {
		family := "IPv6"
		if gateway.Unmap().Is4() {
			family = "IPv4"
		}
		if seen[family] {
			return s.fail(fmt.Sprintf("default-route[%d]", i), fmt.Errorf("a second gateway of %s", family))
		}
		seen[family] = true
	}
	if s.IPAMClaimReference != "" && len(s.IPs) > 0 {
		return s.fail("ipam-claim-reference", errors.New(`given together with "ips": the claim says which addresses there are`))
	}
	if s.IPAMClaimReference != "" && !kubename.IsObject(s.IPAMClaimReference) {
		return s.fail("ipam-claim-reference", fmt.Errorf("%q is not the name of an object", s.IPAMClaimReference))
	}
	return nil
}

// validateMAC fails if the kernel gives the address to no interface.
func validateMAC(text string) error {
	if text == "" {
		return nil
	}
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a hardware address, such as 02:00:00:00:00:01", text)
	case len(mac) == 8:
		return fmt.Errorf("%q has 8 bytes, want 6, or 20 of InfiniBand: a GUID belongs in \"infiniband-guid\"", text)
	case isZero(mac):
		return fmt.Errorf("%q is zero, which no interface can have: leave the key out for an address of the plugin's choice", text)
	case len(mac) == 6 && mac[0]&1 != 0:
		return fmt.Errorf("%q is a multicast address, which no interface can have: the first byte must be even, such as 02", text)
	}
	return nil
}

func isZero(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }

// parseIP parses an address, with a prefix length or without, that an interface can have.
func parseIP(s string) (netip.Addr, error) {
	addr, err := parseAddr(s)
	if strings.Contains(s, "/") {
		var ip net.IP
		ip, _, err = net.ParseCIDR(s) // as Multus and the plugins: of "/024" too
		addr, _ = netip.AddrFromSlice(ip)
	}
	switch addr = addr.Unmap(); {
	case err != nil:
		return addr, fmt.Errorf("%q is not an IP address, such as 10.0.0.5 or 10.0.0.5/24", s)
	case addr.IsUnspecified() || addr.IsMulticast():
		return addr, fmt.Errorf("no interface can have the address %s", addr)
	}
	return addr, nil
}

// parseAddr parses an address without a zone.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address, such as 10.0.0.1", s)
	}
	return addr, nil
}

func (s Selection) fail(key string, err error) error {
	return &Error{Kind: ErrInvalid, Network: s.Name, Key: key, Err: err}
}

// given returns the value of key, or nil if that is absent or null.
func (o object) given(key string) (json.RawMessage, error) {
	raw, ok, err := o.find(key)
	if !ok || isNull(raw) {
		return nil, err
	}
	return raw, err
}

// checkPorts checks "portMappings". Whether a key may be absent is left to the plugin.
func checkPorts(ports []object) error {
	for i, keys := range ports {
		in := fmt.Sprintf("portMappings[%d]", i)
		if keys == nil {
			return checkKind([]byte("null"), in, "an object")
		}
		for _, key := range []string{"hostPort", "containerPort", "hostIP", "protocol"} {
			raw, err := keys.given(key)
			if err == nil && raw != nil {
				err = checkPort(key, raw)
			}
			if err != nil {
				return under(in, err)
			}
		}
	}
	return nil
}

// checkPort checks the value of a key of a port mapping.
func checkPort(key string, raw json.RawMessage) error {
	if key == "hostPort" || key == "containerPort" {
		_, err := number(key, raw, 1, 16)
		return err
	}
	var text string
	err := decodeAs(raw, key, "a string", &text)
	if err == nil {
		err = checkLength(key, &text)
	}
	if err == nil && key == "protocol" && !slices.Contains([]string{"", "TCP", "UDP", "SCTP"}, strings.ToUpper(text)) {
		err = &Error{Kind: ErrInvalid, Key: key, Err: fmt.Errorf("%q is none of TCP, UDP and SCTP", text)}
	}
	return err
}

// checkRates checks "bandwidth", as checkPorts does. It removes what is 0: NPWG's own Go type always
// writes all four keys.
func checkRates(keys object) error {
	for _, way := range []string{"ingress", "egress"} {
		limited := false
		for _, kind := range []string{"Rate", "Burst"} {
			key := way + kind
			var n uint64
			raw, err := keys.given(key)
			if err == nil && raw != nil {
				n, err = number(key, raw, 0, 63)
			}
			switch {
			case err != nil || raw == nil:
			case n == 0 && limited && kind == "Burst":
				err = &Error{Kind: ErrInvalid, Key: key, Err: errors.New("not above 0")}
			case n == 0:
				keys.remove(key)
			case kind == "Burst" && !limited:
				err = &Error{Kind: ErrInvalid, Key: key, Err: fmt.Errorf(`given without "%sRate"`, way)}
			default:
				limited = true
			}
			if err != nil {
				return under("bandwidth", err)
			}
		}
	}
	return nil
}

// number reads raw, the valid JSON of key: a whole number from least up, of so many bits, in digits
// alone, as plugins read it.
func number(key string, raw json.RawMessage, least uint64, bits int) (uint64, error) {
	if err := checkKind(raw, key, "a number"); err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(raw), 10, bits)
	if err != nil || n < least {
		return 0, &Error{Kind: ErrInvalid, Key: key, Err: fmt.Errorf("want a number from %d to %d, in digits alone", least, uint64(1)<<bits-1)}
	}
	return n, nil
}
