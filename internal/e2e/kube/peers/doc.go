// Package peers compares what others make of the same input with what metacni makes of it. PEERS.md
// has the differences.
package peers
