package plugin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
)

// selectionToCompare returns what a pod of a namespace wants with s, to be compared. Selections
// that ask for the same have equal options, however they are written: a living network is not
// attached again because of a letter.
func selectionToCompare(podNamespace string, s netconf.Selection) lifecycle.Wanted {
	ch := lifecycle.Wanted{Network: cmp.Or(s.Namespace, podNamespace) + "/" + s.Name, IfName: s.Interface}
	s.Name, s.Namespace, s.Interface = "", "", ""
	for _, address := range []*string{&s.MAC, &s.InfinibandGUID} {
		if parsed, err := net.ParseMAC(*address); err == nil {
			*address = parsed.String()
		}
	}
	ips, routes := s.IPs, s.DefaultRoute
	s.IPs, s.DefaultRoute = nil, nil
	for _, ip := range ips {
		s.IPs = append(s.IPs, sameIP(ip))
	}
	isIPv6 := func(ip string) int { return min(strings.Count(ip, ":"), 1) }
	slices.SortStableFunc(s.IPs, func(a, b string) int { return isIPv6(a) - isIPv6(b) }) // the first of each family is its primary address
	for _, gateway := range routes {
		s.DefaultRoute = append(s.DefaultRoute, gateway.Unmap())
	}
	slices.SortFunc(s.DefaultRoute, netip.Addr.Compare)
	text, _ := json.Marshal(s) // cannot fail: it was parsed
	var keys map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	_ = decoder.Decode(&keys) // cannot fail: it was encoded
	sameNumbers(keys)
	ports, _ := keys["portMappings"].([]any)
	for i := range ports {
		ports[i] = samePort(ports[i])
	}
	slices.SortFunc(ports, func(a, b any) int { return bytes.Compare(inOrder(a), inOrder(b)) })
	keys["portMappings"], keys["bandwidth"] = ports, folded(keys["bandwidth"])
	for _, key := range []string{"cni-args", "portMappings", "bandwidth"} {
		if text := string(inOrder(keys[key])); text == "{}" || text == "[]" || text == "null" {
			delete(keys, key)
		}
	}
	ch.Options = string(inOrder(keys))
	return ch
}

// inOrder returns the JSON of a value, with the keys of objects in order.
func inOrder(value any) []byte {
	text, _ := json.Marshal(value) // cannot fail: it was decoded
	return text
}

// sameIP returns an address, with a prefix length or without, in its usual form.
func sameIP(ip string) string {
	if p, err := netip.ParsePrefix(ip); err == nil {
		return p.String()
	}
	if a, err := netip.ParseAddr(ip); err == nil {
		return a.Unmap().String()
	}
	return ip
}

// samePort returns a port mapping without what is missing as well as its default.
func samePort(port any) map[string]any {
	keys := folded(port)
	protocol, _ := keys["protocol"].(string)
	keys["protocol"] = cmp.Or(strings.ToLower(protocol), "tcp")
	if ip, _ := keys["hostip"].(string); ip != "" {
		keys["hostip"] = sameIP(ip)
	} else if keys["hostip"] == "" {
		delete(keys, "hostip")
	}
	return keys
}

// folded returns an object with its keys in lower case and without those that are null.
func folded(object any) map[string]any {
	keys := make(map[string]any)
	given, _ := object.(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(given)) { // one may be there in two spellings
		if given[key] != nil {
			keys[strings.ToLower(key)] = given[key]
		}
	}
	return keys
}

// sameNumbers gives whole numbers below 2^53 in a value one form, such as 1 for 1.0.
func sameNumbers(value any) {
	same := func(element any) any {
		if n, ok := element.(json.Number); ok {
			if f, err := n.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 { // exactly
				return json.Number(strconv.FormatInt(int64(f), 10))
			}
		}
		sameNumbers(element)
		return element
	}
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = same(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = same(v[key])
		}
	}
}
