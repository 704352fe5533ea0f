package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// Errors name the file, and each key that is missing or garbled.
func TestReadSubnet(t *testing.T) {
	t.Parallel()
	without := func(key string) string {
		var lines []string
		for line := range strings.Lines(dualStack) {
			if !strings.HasPrefix(line, key+"=") {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	with := func(key, value string) string { return without(key) + key + value + "\n" }
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
		{"no networks", "FLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", "", 7, []string{"FLANNEL_NETWORK: missing"}},
		{"no MTU", without("FLANNEL_MTU"), "", 7, []string{"FLANNEL_MTU: missing"}},
		{"no masquerading", without("FLANNEL_IPMASQ"), "", 7, []string{"FLANNEL_IPMASQ: missing"}},
		{"no equals sign", with("FLANNEL_MTU", ""), "", 6, []string{`FLANNEL_MTU: ""`}}, // flannel's own plugin panics
		{"bare subnet", with("FLANNEL_SUBNET", ""), "", 6, []string{`FLANNEL_SUBNET: ""`}},
		{"MTU garbled", with("FLANNEL_MTU", "=1450x"), "", 6, []string{`FLANNEL_MTU: "1450x"`}},
		{"MTU negative", with("FLANNEL_MTU", "=-1"), "", 6, []string{`FLANNEL_MTU: "-1"`}},
		{"MTU of 33 bits", with("FLANNEL_MTU", "=4294967296"), "", 6, []string{`FLANNEL_MTU`}},
		{"masquerading garbled", with("FLANNEL_IPMASQ", "=yes"), "", 6, []string{`FLANNEL_IPMASQ: "yes"`}},
		{"network garbled", with("FLANNEL_NETWORK", "=10.244.0.0"), "", 6, []string{`FLANNEL_NETWORK: "10.244.0.0"`}},
		{"one of the networks garbled", with("FLANNEL_NETWORK", "=10.244.0.0/16,"), "", 6, []string{`FLANNEL_NETWORK: "10.244.0.0/16,"`}},
		{"network of the other family", with("FLANNEL_NETWORK", "=fd00::/48"), "", 6, []string{`FLANNEL_NETWORK: "fd00::/48"`}},
		{"subnet of the other family", with("FLANNEL_IPV6_SUBNET", "=10.0.0.0/8"), "", 6, []string{`FLANNEL_IPV6_SUBNET: "10.0.0.0/8"`}},
		{"several subnets", with("FLANNEL_SUBNET", "=10.0.0.0/24,10.0.1.0/24"), "", 6, []string{"FLANNEL_SUBNET"}},
		{"IPv6 network garbled", with("FLANNEL_IPV6_NETWORK", "=x"), "", 6, []string{`FLANNEL_IPV6_NETWORK: "x"`}},
		{"everything", "FLANNEL_MTU=x\nFLANNEL_SUBNET=y\n", "", 6, []string{`FLANNEL_MTU: "x"`, `FLANNEL_SUBNET: "y"`, "FLANNEL_NETWORK: missing", "FLANNEL_IPMASQ: missing"}},
		{"NUL", "\x00\n", "", 7, []string{"FLANNEL_NETWORK"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "subnet.env")
			nodetest.OK(t, os.WriteFile(file, []byte(tt.text), 0o600))
			s, err := readSubnet(file)
			if status.Code(err) != tt.code {
				t.Fatalf("code %d, want %d: %v", status.Code(err), tt.code, err)
			}
			if err != nil {
				for _, word := range append(tt.says, file) {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("%q does not say %q", err, word)
					}
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("%q is not one line", err)
				}
				return
			}
			if got := fmt.Sprint("networks ", s.networks, " subnets ", s.subnets, " mtu ", s.mtu, " masq ", s.ipMasq); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// A missing file has code 11, try again later. A file that cannot be read has code
// 5.
func TestReadSubnetFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := readSubnet(filepath.Join(dir, "absent"))
	if status.Code(err) != 11 || !strings.Contains(err.Error(), dir) {
		t.Errorf("code %d: %v", status.Code(err), err)
	}
	for _, path := range []string{dir, "/dev/null"} { // opening a FIFO would hang
		if _, err = readSubnet(path); status.Code(err) != 5 || !strings.Contains(err.Error(), path+": not a regular file") {
			t.Errorf("code %d: %v", status.Code(err), err)
		}
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
