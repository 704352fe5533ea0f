package conform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A Kind is the part that a plugin plays. It decides which checks there are:
//
//	meta     attaches a container by running other plugins
//	main     makes the interface itself, with or without an IPAM plugin
//	chained  changes what the plugins before it in a chain have made
//	ipam     gives addresses to the plugin that runs it
//	shim     passes each command on to a daemon, which runs other plugins
type Kind struct {
	Name string // such as "meta"
	Why  string // what shows it
}

// The kinds.
const (
	kindMeta    = "meta"
	kindMain    = "main"
	kindChained = "chained"
	kindIPAM    = "ipam"
	kindShim    = "shim"
)

var kinds = []string{kindMeta, kindMain, kindChained, kindIPAM, kindShim} //nolint:gochecknoglobals // constant

// A sight is the behaviour of a plugin in an ADD.
type sight struct {
	err        error  // how it failed
	text       string // of err
	late       bool   // whether it did not end
	interfaces int    // in the result, but not those of prevResult
	prev       int    // interfaces of prevResult in the result
	ips        int
	made       bool // the interface is in the container
	apart      bool // delegates ran in processes that the plugin had not started
}

// identify finds out the kind of the plugin by attaching a container.
func (s *suite) identify(ctx context.Context) error {
	b, err := s.bench(ctx)
	if err != nil {
		return err
	}
	told := s.kind.Name
	given := b.prev != nil
	s.chained = given || told == kindChained
	first, err := s.look(ctx)
	if err != nil {
		return err
	}
	if told != "" {
		return s.first(first)
	}
	name, _ := b.conf["type"].(string)
	if own := s.plugin.name(); own != "" {
		name = own
	}
	ipamConf, _ := b.conf["ipam"].(map[string]any)
	ipamType, _ := ipamConf["type"].(string)
	if ipamType == name && name != "" {
		s.kind = Kind{kindIPAM, "its configuration names it as the type of ipam"}
		return s.first(first)
	}
	if given {
		s.kind = Kind{kindChained, "its configuration has a prevResult"}
		return s.first(first)
	}
	if behind, err := s.behind(ctx, first); err != nil || s.kind.Name != "" {
		return cmp.Or(err, s.first(behind))
	}
	switch delegating := len(s.conf.Delegates) > 0; {
	case delegating && first.apart:
		s.kind = Kind{kindShim, "its delegates run in processes that it does not start"}
	case delegating && first.made:
		s.kind = Kind{kindMain, fmt.Sprintf("it makes the interface itself, and runs %q", s.conf.Delegates)}
	case slices.Equal(s.conf.Delegates, []string{ipamType}):
		s.kind = Kind{kindMain, "its only delegate is the IPAM plugin " + ipamType}
	case delegating:
		s.kind = Kind{kindMeta, fmt.Sprintf("its configuration has the delegates %q", s.conf.Delegates)}
	case first.made || first.interfaces > 0:
		s.kind = Kind{kindMain, "its ADD makes an interface"}
	case first.ips > 0:
		s.kind = Kind{kindIPAM, "its ADD prints addresses and no interface"}
	default:
		s.kind = Kind{kindMain, "nothing shows that it is of another kind"}
	}
	return s.first(first)
}

// behind tries a plugin whose ADD alone failed, or did nothing that shows, behind another one. If
// it belongs there, that is its kind.
func (s *suite) behind(ctx context.Context, alone sight) (seen sight, err error) {
	if alone.err == nil && (len(s.conf.Delegates) > 0 || alone.made || alone.interfaces+alone.ips > 0) {
		return alone, nil
	}
	s.chained = true
	if seen, err = s.look(ctx); err != nil {
		return seen, err
	}
	switch {
	case seen.err == nil && alone.err != nil:
		s.kind = Kind{kindChained, "its ADD succeeds behind another plugin only"}
	case seen.err == nil && seen.prev > 0:
		s.kind = Kind{kindChained, "its ADD hands on a prevResult and makes nothing else"}
	case seen.err != nil && alone.err != nil && asksForOther.MatchString(alone.text):
		s.kind = Kind{kindChained, "its ADD fails alone with " + alone.text}
	default:
		s.chained = false
	}
	return seen, nil
}

// asksForOther matches errors of plugins that miss the result of another one.
var asksForOther = regexp.MustCompile(`(?i)prev(ious)?[ _-]?result|chain`)

// look attaches a container and returns what can be seen.
func (s *suite) look(ctx context.Context) (seen sight, err error) {
	defer s.clear()
	b, err := s.bench(ctx)
	if err != nil {
		return seen, err
	}
	o := b.call(ctx, delegatetest.Invocation{Command: "ADD"})
	c := b.c1
	seen.err, seen.late, seen.apart = o.Err(), o.late, b.ranApart()
	if seen.err != nil {
		seen.text = s.tell(bounded(seen.err))
		if end := b.daemonEnd(); end != nil {
			seen.text += fmt.Sprintf(", and %s", s.tell(end))
		}
	}
	if !s.chained {
		seen.made = c.has(s.ifname)
	}
	current, err := o.current()
	if err != nil {
		return seen, nil
	}
	prev, _ := contentOf(b.before(c, s.ifname))
	for _, i := range current.Interfaces {
		if slices.Contains(prev.interfaces, i.Name) {
			seen.prev++
			continue
		}
		seen.interfaces++
		if i.Name == loopback && i.Sandbox == c.path {
			s.ifname = loopback
		}
	}
	seen.ips = len(current.IPs)
	return seen, nil
}

// loopback is an interface that each container has. A plugin for it ignores CNI_IFNAME, which
// runtimes set to its name.
const loopback = "lo"

// first notes how the first ADD ended, and what it lacked if it failed as a plugin should.
func (s *suite) first(seen sight) error {
	s.added = seen.err
	if seen.late {
		s.missing = fmt.Sprintf("ADD does not end: it may wait for a daemon (Daemon), or take longer (Timeout), or not be of the kind %q (Kind)", s.kind.Name)
		return nil
	}
	said := (*types.Error)(nil)
	if seen.err == nil || !errors.As(seen.err, &said) {
		return nil
	}
	lacks := "what its error names, such as a configuration or files (Stdin), an interface of the host (Links), a daemon (Daemon), or the result of a delegate (Fakes)"
	switch said.Code {
	case types.ErrUnsupportedField, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		lacks = "a configuration with which it can work, or files that it reads (Stdin)"
	case types.ErrInvalidEnvironmentVariables:
		lacks = "a variable (Env)"
	case types.ErrTryAgainLater:
		lacks = "something that is not ready, such as a daemon (Daemon)"
	}
	if !s.conf.NetNS {
		lacks += ", or real containers (NetNS)"
	}
	s.missing = fmt.Sprintf("ADD fails with %s: the plugin lacks %s, or is not of the kind %q (Kind)", seen.text, lacks, s.kind.Name)
	return nil
}
