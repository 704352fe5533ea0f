// Simple is a main plugin, and with a prevResult a chained one, as people write them: with
// package skel, and with the flaws that its configuration names. For each container it makes an
// interface or a policy rule, and a file in /run/simple.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

const dir = "/run/simple"

func main() {
	p := &plugin{}
	command := func(do func() error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			p.CmdArgs = args
			if err := json.Unmarshal(args.StdinData, p); err != nil {
				return types.NewError(types.ErrDecodingFailure, err.Error(), "")
			}
			return do()
		}
	}
	funcs := skel.CNIFuncs{Add: command(p.add), Check: command(p.check), Del: command(p.del), GC: command(p.gc), Status: command(func() error { return nil })}
	if err := skel.PluginMainFuncsWithError(funcs, version.All, ""); err != nil {
		v := p.CNIVersion
		if v == "" {
			v = version.Current()
		}
		_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": v, "code": err.Code, "msg": err.Msg})
		os.Exit(1)
	}
}

type plugin struct {
	*skel.CmdArgs `json:"-"`

	CNIVersion string
	Chained    bool
	Flaw       string
	PrevResult json.RawMessage
	Valid      []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// number returns a number for the attachment.
func number(name string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return int(h.Sum32() % 200)
}

// name returns the name of the attachment's file.
func (p *plugin) name() string {
	if p.Flaw == "knows the container only" {
		return p.ContainerID + "@eth0"
	}
	return p.ContainerID + "@" + p.IfName
}

// link returns the name of the host's end.
func link(name string) string { return fmt.Sprint("simple", number(name)) }

// address returns an address of the attachment: no two of a test have the same.
func address(name string) *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, 77, 0, byte(number(name)+2)).To4(), Mask: net.CIDRMask(24, 32)}
}

func rule(name string) *netlink.Rule {
	r := netlink.NewRule()
	r.Src, r.Table, r.Priority = address(name), 254, 1000+number(name)
	r.Src.Mask = net.CIDRMask(32, 32)
	return r
}

func (p *plugin) add() (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, p.name()), nil, 0o600); err != nil {
		return err
	}
	if p.Flaw == "leaves a process" {
		sleep := exec.Command("sleep", "600")
		sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := sleep.Start(); err != nil {
			return err
		}
	}
	if p.Chained {
		return p.addRule()
	}
	if p.Flaw == "leaves an interface that it cannot move" {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "a" + link(p.name())
		pair := netlink.NewVeth(attrs)
		pair.PeerName = "b" + link(p.name())
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		defer func() {
			if err == nil {
				err = netlink.LinkDel(pair)
			}
		}()
	}
	if err := p.addLink(); err != nil {
		return errors.Join(err, p.remove(p.name()))
	}
	return nil
}

func (p *plugin) addRule() error {
	if p.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "no prevResult", "")
	}
	if change := p.change(); change != nil {
		if err := errors.Join(os.Remove(filepath.Join(dir, p.name())), p.inside(change)); err != nil {
			return err
		}
	} else if err := netlink.RuleAdd(rule(p.name())); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	prev, err := create.CreateFromBytes(p.PrevResult)
	if err != nil {
		return err
	}
	r, err := types100.NewResultFromResult(prev)
	if err != nil {
		return err
	}
	r.Routes = append(r.Routes, &types.Route{Dst: *address("x")}) // a chained plugin may change the result
	if p.Flaw == "drops prevResult" {
		r = &types100.Result{}
	}
	return types.PrintResult(r, p.CNIVersion)
}

// mtu is not that of an interface of the suite.
const mtu = 1401

// change returns what a flawed chained plugin does in the container instead of making a rule, or nil.
func (p *plugin) change() func() error {
	switch {
	case strings.HasPrefix(p.Flaw, "changes the MTU"):
		return func() error {
			l, err := netlink.LinkByName(p.IfName)
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(l, mtu)
		}
	case strings.HasPrefix(p.Flaw, "changes a setting"):
		return func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) }
	case strings.HasPrefix(p.Flaw, "removes a route"):
		return func() error {
			routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
			for _, r := range routes {
				if r.Gw != nil {
					err = errors.Join(err, netlink.RouteDel(&r))
				}
			}
			return err
		}
	}
	return nil
}

// inside calls do in the container.
func (p *plugin) inside(do func() error) error {
	container, err := ns.GetNS(p.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = container.Close() }()
	return container.Do(func(ns.NetNS) error { return do() })
}

func (p *plugin) addLink() error {
	container, err := ns.GetNS(p.Netns)
	if err != nil {
		return err
	}
	defer func() { _ = container.Close() }()
	name := p.IfName
	if p.Flaw == "another name" {
		name = "other0"
	}
	inside := func(do func() error) error { return container.Do(func(ns.NetNS) error { return do() }) }
	if err := inside(func() error {
		l, err := netlink.LinkByName(name)
		switch {
		case err != nil:
			return nil //nolint:nilerr // not there
		case p.Flaw == "replaces an interface", p.Flaw == "removes an interface":
			return netlink.LinkDel(l)
		}
		return errors.New("there is a " + name)
	}); err != nil {
		return err
	}
	if p.Flaw == "removes an interface" && !strings.HasPrefix(p.ContainerID, "c") {
		return errors.New("no")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link(p.name())
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerNamespace = name, netlink.NsFd(container.Fd())
	if p.Flaw != "no interface" {
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		if err := inside(func() error {
			l, err := netlink.LinkByName(name)
			if err != nil || p.Flaw == "no address" {
				return err
			}
			return netlink.AddrAdd(l, &netlink.Addr{IPNet: address(p.name())})
		}); err != nil {
			return err
		}
	}
	r := &types100.Result{
		Interfaces: []*types100.Interface{{Name: name, Sandbox: p.Netns}},
		IPs:        []*types100.IPConfig{{Interface: types100.Int(0), Address: *address(p.name())}},
	}
	if p.Flaw == "forgets the sandbox" {
		r.Interfaces[0].Sandbox = ""
	}
	if p.PrevResult != nil {
		prev, err := create.CreateFromBytes(p.PrevResult)
		if err != nil {
			return err
		}
		before, err := types100.NewResultFromResult(prev)
		if err != nil {
			return err
		}
		r.IPs[0].Interface = types100.Int(len(before.Interfaces))
		before.Interfaces = append(before.Interfaces, r.Interfaces...)
		before.IPs = append(before.IPs, r.IPs...)
		r = before
	}
	return types.PrintResult(r, p.CNIVersion)
}

func (p *plugin) check() error {
	if strings.HasSuffix(p.Flaw, "checks nothing") {
		return nil
	}
	if p.Flaw == "changes the MTU" {
		return p.inside(func() error {
			l, err := netlink.LinkByName(p.IfName)
			if err == nil && l.Attrs().MTU != mtu {
				err = errors.New("another MTU")
			}
			return err
		})
	}
	if _, err := os.Stat(filepath.Join(dir, p.name())); err != nil {
		return err
	}
	if p.Chained {
		return nil
	}
	return p.inside(func() error {
		l, err := netlink.LinkByName(p.IfName)
		if err != nil || p.Flaw == "checks the interface only" {
			return err
		}
		all, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err == nil && !slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.Equal(address(p.name()).IP) }) {
			err = errors.New("the address is gone")
		}
		return err
	})
}

func (p *plugin) del() error {
	if p.Flaw == "deletes eth0" {
		p.IfName = "eth0"
	}
	if p.Netns != "" {
		container, err := ns.GetNS(p.Netns)
		switch {
		case err == nil:
			_ = container.Close()
		case p.Flaw == "needs the namespace":
			return err
		case p.Flaw == "gives up without the namespace":
			return nil
		}
	}
	return p.remove(p.name())
}

// remove removes what was made for an attachment. The kernel removes the other end.
func (p *plugin) remove(name string) error {
	if p.Flaw == "leaves a file" {
		return p.unlink(name)
	}
	if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return p.unlink(name)
}

func (p *plugin) unlink(name string) error {
	if p.Chained {
		if p.Flaw != "leaves a rule" {
			_ = netlink.RuleDel(rule(name)) // it may be gone
		}
		return nil
	}
	l, err := netlink.LinkByName(link(name))
	if err != nil || p.Flaw == "leaves an interface" {
		return nil //nolint:nilerr // it is gone
	}
	if err := netlink.LinkDel(l); !errors.Is(err, syscall.ENODEV) { // the kernel may have removed it
		return err
	}
	return nil
}

func (p *plugin) gc() error {
	if p.Flaw == "collects nothing" {
		return nil
	}
	entries, _ := os.ReadDir(dir) // there may be none
	for _, e := range entries {
		id, ifname, _ := strings.Cut(e.Name(), "@")
		if p.Flaw == "collects everything" || !slices.Contains(p.Valid, types.GCAttachment{ContainerID: id, IfName: ifname}) {
			if err := p.remove(e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}
