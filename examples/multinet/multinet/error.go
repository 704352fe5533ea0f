package multinet

import (
	"errors"
	"fmt"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf/nad"
)

// Several networks may have the same name, and people know them by others. So the errors of an
// ADD say which selection, claim or key of the configuration asks for the network.

// about returns err with the words by which people know w.
func (c *config) about(w wanted, err error) error {
	switch {
	case err == nil:
		return nil
	case w.use == nad.PodDefault:
		return fmt.Errorf("annotation %s: network %q: %w", nad.DefaultNetworkAnnotation, w.selection.Name, err)
	case w.ofPod():
		return fmt.Errorf("selected network %q: %w", w.selection.Name, err)
	case w.use == nad.Claimed:
		return fmt.Errorf("%v: %w", w.claim, err)
	case w.name != "":
		return fmt.Errorf("network %q: %s %q: %w", c.call.Name, w.key, w.name, err)
	}
	return err
}

// aboutAttachments returns err with the claims and definitions of the attachments that it is
// about: the one whose plugin has failed, or those that ask for an interface which they cannot
// have. The names of their networks may be others.
func aboutAttachments(as []delegate.Attachment, err error) error {
	var failed *delegate.Error
	var wrong *ifname.Error
	ifName := ""
	switch {
	case errors.As(err, &failed):
		ifName = failed.IfName
	case errors.As(err, &wrong):
		ifName = wrong.Name
	}
	if ifName == "" {
		return err
	}
	var about []string
	for _, a := range as {
		if words := aboutOrigin(nad.ParseOrigin(a.Origin)); a.IfName == ifName && words != "" {
			about = append(about, words)
		}
	}
	if about == nil {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(about, " and "), err)
}

// aboutOrigin returns the claim and the definition of an attachment, as far as it has them.
func aboutOrigin(o nad.Origin) string {
	var words []string
	if o.Use == nad.Claimed {
		words = append(words, o.Claim.String())
	}
	if o.Definition != (nad.Ref{}) {
		words = append(words, "NAD "+o.Definition.String())
	}
	return strings.Join(words, ", ")
}
