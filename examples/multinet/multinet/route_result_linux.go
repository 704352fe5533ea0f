package multinet

import (
	"encoding/json"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate"
)

// reviseResults removes the default routes of gateway's family from all results and
// adds the new one to the result of added[chosen]. It changes only routes of the main
// table, as routeVia does.
func reviseResults(added []delegate.Attached, chosen int, gateway netip.Addr) error {
	dst, family := "0.0.0.0/0", "ip4"
	if gateway.Is6() {
		dst, family = "::/0", "ip6"
	}
	for i := range added {
		var add map[string]string
		if i == chosen {
			add = map[string]string{"dst": dst, "gw": gateway.String()}
		}
		revised, err := revise(added[i].Result, family, dst, add)
		if err != nil {
			return err
		}
		added[i].Result = revised
	}
	return nil
}

// revise returns a result without the routes of the main table to dst and, if add is not nil,
// with that route. A result older than CNI 0.3.0 has the routes of a family next to its
// address; without an address it cannot have routes.
func revise(result json.RawMessage, family, dst string, add map[string]string) (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	var v struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := errors.Join(json.Unmarshal(result, &keys), json.Unmarshal(result, &v)); err != nil {
		return nil, err
	}
	if keys == nil {
		return nil, errors.New("a result of null")
	}
	revised, key, err := json.RawMessage(nil), "routes", error(nil)
	switch {
	case v.CNIVersion != "0.1.0" && v.CNIVersion != "0.2.0":
		revised, err = reviseRoutes(keys[key], dst, add)
	case keys[family] != nil && string(keys[family]) != "null":
		key = family
		revised, err = revise(keys[key], "", dst, add)
	}
	if err != nil || revised == nil {
		return result, err
	}
	keys[key] = revised
	return json.Marshal(keys)
}

// reviseRoutes is revise for a list of routes. No list stays none if there is nothing to add.
func reviseRoutes(list json.RawMessage, dst string, add map[string]string) (json.RawMessage, error) {
	var routes []any
	var all []json.RawMessage
	if list != nil {
		if err := json.Unmarshal(list, &all); err != nil {
			return nil, err
		}
	}
	for _, r := range all {
		if !leadsTo(r, dst) {
			routes = append(routes, r)
		}
	}
	if add != nil {
		routes = append(routes, add)
	}
	if routes == nil && list == nil {
		return nil, nil
	}
	return json.Marshal(append([]any{}, routes...))
}

// leadsTo reports whether route is one of the main table to dst.
func leadsTo(route json.RawMessage, dst string) bool {
	var r struct {
		Dst   string `json:"dst"`
		Table int    `json:"table"`
	}
	if json.Unmarshal(route, &r) != nil || r.Table != unix.RT_TABLE_UNSPEC && r.Table != unix.RT_TABLE_MAIN {
		return false
	}
	p, err := netip.ParsePrefix(r.Dst)
	return err == nil && p.Masked().String() == dst
}
