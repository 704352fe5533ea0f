package netconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
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
	if s.MAC != "" {
		if _, err := net.ParseMAC(s.MAC); err != nil {
			return s.fail("mac", err)
		}
	}
	if s.InfinibandGUID != "" {
		if guid, err := net.ParseMAC(s.InfinibandGUID); err != nil || len(guid) != 8 {
			return s.fail("infiniband-guid", fmt.Errorf("%q is not a GUID of 8 bytes", s.InfinibandGUID))
		}
	}
	for i, ip := range s.IPs {
		if err := validateIP(ip); err != nil {
			return s.fail(fmt.Sprintf("ips[%d]", i), err)
		}
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

// validateIP fails unless s is an address, with or without a prefix length.
func validateIP(s string) error {
	if strings.Contains(s, "/") {
		_, err := netip.ParsePrefix(s)
		return err
	}
	_, err := parseAddr(s)
	return err
}

// parseAddr parses an address, which has no zone.
func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, err
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", s)
	}
	return addr, nil
}

func (s Selection) fail(key string, err error) error {
	return &Error{Kind: ErrInvalid, Network: s.Name, Key: key, Err: err}
}

// checkPorts checks "portMappings". Runtimes and plugins use encoding/json, so that
// keys count in upper and lower case. Whether a key may be absent is left to the
// plugin.
func checkPorts(ports []map[string]json.RawMessage) error {
	for i, keys := range ports {
		for _, key := range []string{"hostPort", "containerPort"} {
			at := fmt.Sprintf("portMappings[%d].%s", i, key)
			for _, raw := range folded(keys, key) {
				if n, err := number(raw, at); err != nil {
					return err
				} else if n < 1 || n > 65535 || n != math.Trunc(n) {
					return &Error{Kind: ErrInvalid, Key: at, Err: errors.New("not a port, which is from 1 to 65535")}
				}
			}
		}
		for _, raw := range folded(keys, "protocol") {
			at := fmt.Sprintf("portMappings[%d].protocol", i)
			var protocol string
			if err := decodeAs(raw, at, "a string", &protocol); err != nil {
				return err
			}
			if err := checkLength(at, &protocol); err != nil {
				return err
			}
			if !slices.Contains([]string{"", "TCP", "UDP", "SCTP"}, strings.ToUpper(protocol)) {
				return &Error{Kind: ErrInvalid, Key: at, Err: fmt.Errorf("%q is none of TCP, UDP and SCTP", protocol)}
			}
		}
	}
	return nil
}

// checkRates checks "bandwidth", as checkPorts does.
func checkRates(keys map[string]json.RawMessage) error {
	for _, way := range []string{"ingress", "egress"} {
		rates, bursts := folded(keys, way+"Rate"), folded(keys, way+"Burst")
		if len(bursts) > 0 && len(rates) == 0 {
			return &Error{Kind: ErrInvalid, Key: "bandwidth." + way + "Burst", Err: fmt.Errorf(`given without "%sRate"`, way)}
		}
		for i, raw := range slices.Concat(rates, bursts) {
			at := "bandwidth." + way + "Rate"
			if i >= len(rates) {
				at = "bandwidth." + way + "Burst"
			}
			if n, err := number(raw, at); err != nil {
				return err
			} else if n <= 0 {
				return &Error{Kind: ErrInvalid, Key: at, Err: errors.New("not above 0")}
			}
		}
	}
	return nil
}

// folded returns the values of the keys that differ from key in upper and lower
// case at most, in the order of the keys. A null counts as absent.
func folded(keys object, key string) []json.RawMessage {
	var values []json.RawMessage
	for _, name := range keys.sorted() {
		if strings.EqualFold(name, key) && !isNull(keys[name]) {
			values = append(values, keys[name])
		}
	}
	return values
}

// number reads raw, the valid JSON of key.
func number(raw json.RawMessage, key string) (float64, error) {
	if err := checkKind(raw, key, "a number"); err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return 0, &Error{Kind: ErrInvalid, Key: key, Err: errors.New("too large")}
	}
	return n, nil
}
