package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Errors name the file, and each key that is missing or garbled.
func TestReadSubnet(t *testing.T) {
	t.Parallel()
	with := func(key, value string) string {
		return regexp.MustCompile("(?m)^"+key+"=.*$").ReplaceAllString(dualStack, key+value)
	}
	const both = "networks [10.244.0.0/16 fd00:10::/48] subnets [10.244.1.0/24 fd00:10:0:1::/64] mtu 1450 masq true"
	for _, tt := range []struct {
		name, text, want string
		code             uint
		says             []string
	}{
		{"IPv4", subnetEnv, "networks [10.244.0.0/16] subnets [10.244.1.0/24] mtu 1450 masq true", 0, nil},
		{"dual stack", dualStack, both, 0, nil},
		{
			"IPv6", "FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00::1/64\nFLANNEL_MTU=0\nFLANNEL_IPMASQ=false",
			"networks [fd00::/48] subnets [fd00::/64] mtu 0 masq false", 0, nil,
		},
		{"white space, comments, unknown keys", "# flannel\n\n \t\nX\nFLANNEL_X=1\n" + strings.ReplaceAll(dualStack, "\n", " \r\n"), both, 0, nil},
		{"the last counts", "FLANNEL_MTU=9000\n" + dualStack, both, 0, nil},
		{"several networks", with("FLANNEL_NETWORK", "=10.1.0.0/16,10.2.3.4/16,10.1.0.0/16"), "networks [10.1.0.0/16 10.2.0.0/16 fd00:10::/48] subnets [10.244.1.0/24 fd00:10:0:1::/64] mtu 1450 masq true", 0, nil},

		{"empty", "", "", 7, []string{"FLANNEL_NETWORK: missing", "FLANNEL_SUBNET: missing", "FLANNEL_MTU: missing", "FLANNEL_IPMASQ: missing"}},
		{"no equals sign", with("FLANNEL_MTU", ""), "", 6, []string{`FLANNEL_MTU: ""`}}, // flannel's own plugin panics
		{"MTU garbled", with("FLANNEL_MTU", "=1450x"), "", 6, []string{`FLANNEL_MTU: "1450x"`}},
		{"MTU of 33 bits", with("FLANNEL_MTU", "=4294967296"), "", 6, []string{`FLANNEL_MTU`}},
		{"masquerading garbled", with("FLANNEL_IPMASQ", "=yes"), "", 6, []string{`FLANNEL_IPMASQ: "yes"`}},
		{"one of the networks garbled", with("FLANNEL_NETWORK", "=10.244.0.0/16,"), "", 6, []string{`FLANNEL_NETWORK: "10.244.0.0/16,"`}},
		{"network of the other family", with("FLANNEL_NETWORK", "=fd00::/48"), "", 6, []string{`FLANNEL_NETWORK: "fd00::/48"`}},
		{"subnet of the other family", with("FLANNEL_IPV6_SUBNET", "=10.0.0.0/8"), "", 6, []string{`FLANNEL_IPV6_SUBNET: "10.0.0.0/8"`}},
		{"several subnets", with("FLANNEL_SUBNET", "=10.0.0.0/24,10.0.1.0/24"), "", 6, []string{"FLANNEL_SUBNET"}},
		{"everything", "FLANNEL_MTU=x\nFLANNEL_SUBNET=y\n", "", 6, []string{`FLANNEL_MTU: "x"`, `FLANNEL_SUBNET: "y"`, "FLANNEL_NETWORK: missing", "FLANNEL_IPMASQ: missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "subnet.env")
			nodetest.OK(t, os.WriteFile(file, []byte(tt.text), 0o600))
			s, err := readSubnet(file)
			if nodetest.Code(t, err, tt.code); err != nil {
				nodetest.Says(t, err, append(tt.says, file)...)
				nodetest.Equal(t, "lines", strings.Count(err.Error(), "\n"), 0)
				return
			}
			got := fmt.Sprint("networks ", s.networks, " subnets ", s.subnets, " mtu ", s.mtu, " masq ", s.ipMasq)
			nodetest.Equal(t, "subnet", got, tt.want)
		})
	}
}

// A missing file has code 11, try again later. A file that cannot be read has code
// 5.
func TestReadSubnetFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := readSubnet(filepath.Join(dir, "absent"))
	nodetest.Fails(t, err, 11, dir)
	for _, path := range []string{dir, "/dev/null"} { // opening a FIFO would hang
		_, err = readSubnet(path)
		nodetest.Fails(t, err, 5, path+": not a regular file")
	}
}

// No content of subnet.env causes a panic. Every error names a key. Accepted networks
// are masked and without duplicates.
func FuzzParseSubnet(f *testing.F) {
	for _, seed := range []string{"", subnetEnv, dualStack, "FLANNEL_MTU", "FLANNEL_SUBNET=\nFLANNEL_NETWORK=,", "=\n==\n", "FLANNEL_IPV6_SUBNET=::ffff:1.2.3.4/96\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, _, errs := parseSubnet(text)
		for _, err := range errs {
			if !strings.HasPrefix(err.Error(), "FLANNEL_") {
				t.Errorf("%q names no key", err)
			}
		}
		if len(errs) > 0 {
			return
		}
		if len(s.subnets) < 1 || len(s.subnets) > 2 || len(s.networks) < 1 {
			t.Errorf("%+v", s)
		}
		for _, ps := range [][]netip.Prefix{s.networks, s.subnets} {
			for i, p := range ps {
				if !p.IsValid() || p != p.Masked() || slices.Contains(ps[:i], p) {
					t.Errorf("%v in %v", p, ps)
				}
			}
		}
	})
}
