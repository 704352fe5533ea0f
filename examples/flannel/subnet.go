package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// A subnet is what flanneld has written to subnet.env about this host.
type subnet struct {
	networks []netip.Prefix // of the whole cluster, IPv4 first
	subnets  []netip.Prefix // of this host, at most one of each family, IPv4 first
	mtu      uint64
	ipMasq   bool
}

// readSubnet reads the subnet.env at path. It ignores unknown keys, empty lines
// and comments. If a key is given twice, the last one counts. The error has code 11 for a
// missing file, 6 for garbled values, and 7 for missing keys. It names each of them.
func readSubnet(path string) (subnet, error) {
	fail := func(code uint, err error) (subnet, error) {
		return subnet{}, types.NewError(code, path+": "+strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file") // opening a FIFO would wait for a writer
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fail(types.ErrTryAgainLater, errors.New("flanneld has not written it"))
	}
	if err != nil {
		return fail(types.ErrIOFailure, err)
	}
	s, code, errs := parseSubnet(string(data))
	if len(errs) > 0 {
		return fail(code, errors.Join(errs...))
	}
	return s, nil
}

// parseSubnet returns the values in the text of a subnet.env, or an error for each key that is
// wrong, and the CNI code of all of them.
func parseSubnet(text string) (s subnet, code uint, errs []error) {
	code = types.ErrInvalidNetworkConfig
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	type field struct {
		key   string
		parse func(string) error
	}
	for _, alternatives := range [][]field{ // at least one of each is required
		{{"FLANNEL_NETWORK", prefixes(&s.networks, netip.Addr.Is4)}, {"FLANNEL_IPV6_NETWORK", prefixes(&s.networks, netip.Addr.Is6)}},
		{{"FLANNEL_SUBNET", prefix(&s.subnets, netip.Addr.Is4)}, {"FLANNEL_IPV6_SUBNET", prefix(&s.subnets, netip.Addr.Is6)}},
		{{"FLANNEL_MTU", func(v string) (err error) { s.mtu, err = strconv.ParseUint(v, 10, 32); return errors.Unwrap(err) }}},
		{{"FLANNEL_IPMASQ", func(v string) (err error) { s.ipMasq, err = strconv.ParseBool(v); return errors.Unwrap(err) }}},
	} {
		given := false
		for _, f := range alternatives {
			value, ok := values[f.key]
			if !ok {
				continue
			}
			given = true
			if err := f.parse(value); err != nil {
				code = types.ErrDecodingFailure
				errs = append(errs, fmt.Errorf("%s: %q: %w", f.key, value, err))
			}
		}
		if !given {
			errs = append(errs, fmt.Errorf("%s: missing", alternatives[0].key))
		}
	}
	return s, code, errs
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

// prefix parses a network, or an address in it: flanneld writes the gateway's.
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
