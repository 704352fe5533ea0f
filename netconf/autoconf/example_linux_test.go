package autoconf_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

// What runtimes read after Publish is a meta-plugin's configuration with the
// first valid network in it.
func ExampleManager_Publish() {
	dir, err := os.MkdirTemp("", "net.d")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, content := range map[string]string{
		"05-broken.conflist": `{"cniVersion":"1.0.0","name":`,
		"10-blue.conflist":   `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge","capabilities":{"mac":true}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}
	template, err := netconf.ParsePlugin([]byte(`{"type":"multinet","name":"multinet","cniDir":"/var/lib/cni/multinet"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	m := &autoconf.Manager{Dir: dir, Output: filepath.Join(dir, "00-multinet"), Template: template}
	if err := m.Publish(); err != nil {
		fmt.Println(err)
		return
	}
	s := m.State()
	for _, skipped := range s.Skipped {
		fmt.Println("skipped:", skipped)
	}
	fmt.Println("in front of", s.Primary)
	data, err := os.ReadFile(s.Published)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(filepath.Base(s.Published), " ", string(data))
	// Output:
	// skipped: cannot decode configuration: file "05-broken.conflist": line 1, column 29: unexpected end of JSON input
	// in front of 10-blue.conflist
	// 00-multinet.conflist {"cniVersion":"1.0.0","name":"multinet","plugins":[{"capabilities":{"mac":true},"cniDir":"/var/lib/cni/multinet","delegates":[{"cniVersion":"1.0.0","name":"blue","plugins":[{"capabilities":{"mac":true},"type":"bridge"}]}],"type":"multinet"}]}
}
