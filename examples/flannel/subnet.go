package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// A subnet is what flanneld writes down about this host: subnet.env.
type subnet struct {
	networks []netip.Prefix // of the whole cluster, IPv4 first
	subnets  []netip.Prefix // of this host, at most one of each family, IPv4 first
	mtu      uint64
	ipMasq   bool
}

// A subnetError says what is wrong with a subnet.env, key by key.
type subnetError struct {
	file string
	code uint
	errs []error
}

func (e *subnetError) Error() string {
	return fmt.Sprintf("%s: %s", e.file, strings.ReplaceAll(errors.Join(e.errs...).Error(), "\n", "; "))
}

func (e *subnetError) Unwrap() []error { return e.errs }

// CNICode reports 11 for a file that is not there yet, 6 for values that
// cannot be read, 7 for keys that are missing.
func (e *subnetError) CNICode() uint { return e.code }

// readSubnet reads the subnet.env at path. Unknown keys, empty lines and
// comments are ignored; of a key given twice the last counts.
func readSubnet(path string) (subnet, error) {
	// To open a FIFO waits for a writer, which nothing can interrupt.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return subnet{}, &subnetError{path, types.ErrIOFailure, []error{errors.New("not a regular file")}}
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return subnet{}, &subnetError{path, types.ErrTryAgainLater, []error{fmt.Errorf("flanneld has not written it: %w", os.ErrNotExist)}}
	}
	if err != nil {
		return subnet{}, &subnetError{path, types.ErrIOFailure, []error{err}}
	}
	s, garbled, missing := parseSubnet(string(data))
	if len(garbled) > 0 {
		return subnet{}, &subnetError{path, types.ErrDecodingFailure, append(garbled, missing...)}
	}
	if len(missing) > 0 {
		return subnet{}, &subnetError{path, types.ErrInvalidNetworkConfig, missing}
	}
	return s, nil
}

func parseSubnet(text string) (s subnet, garbled, missing []error) {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	read := func(key string, parse func(string) error) bool {
		value, ok := values[key]
		if !ok {
			return false
		}
		if err := parse(value); err != nil {
			garbled = append(garbled, fmt.Errorf("%s: %q: %w", key, value, err))
		}
		return true
	}
	network4 := read("FLANNEL_NETWORK", prefixes(&s.networks, netip.Addr.Is4))
	network6 := read("FLANNEL_IPV6_NETWORK", prefixes(&s.networks, netip.Addr.Is6))
	subnet4 := read("FLANNEL_SUBNET", prefix(&s.subnets, netip.Addr.Is4))
	subnet6 := read("FLANNEL_IPV6_SUBNET", prefix(&s.subnets, netip.Addr.Is6))
	mtu := read("FLANNEL_MTU", func(v string) (err error) { s.mtu, err = strconv.ParseUint(v, 10, 32); return reason(err) })
	masq := read("FLANNEL_IPMASQ", func(v string) (err error) { s.ipMasq, err = strconv.ParseBool(v); return reason(err) })
	for _, key := range []struct {
		name  string
		there bool
	}{
		{"FLANNEL_NETWORK", network4 || network6},
		{"FLANNEL_SUBNET", subnet4 || subnet6},
		{"FLANNEL_MTU", mtu},
		{"FLANNEL_IPMASQ", masq},
	} {
		if !key.there {
			missing = append(missing, fmt.Errorf("%s: missing", key.name))
		}
	}
	return s, garbled, missing
}

// prefixes parses networks, separated by commas.
func prefixes(to *[]netip.Prefix, family func(netip.Addr) bool) func(string) error {
	return func(value string) error {
		for text := range strings.SplitSeq(value, ",") {
			if err := prefix(to, family)(strings.TrimSpace(text)); err != nil {
				return err
			}
		}
		return nil
	}
}

// prefix parses a network, or an address in it: the gateway's, in flannel's
// case.
func prefix(to *[]netip.Prefix, family func(netip.Addr) bool) func(string) error {
	return func(value string) error {
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return errors.New("not a CIDR")
		}
		if !family(p.Addr()) {
			return errors.New("of the other IP family")
		}
		if p = p.Masked(); !slices.Contains(*to, p) {
			*to = append(*to, p)
		}
		return nil
	}
}

// reason leaves out what the caller says already.
func reason(err error) error {
	var num *strconv.NumError
	if errors.As(err, &num) {
		return cmp.Or(num.Err, err)
	}
	return err
}
