"""The mutating admission of pods: profiles, batch resources, quota trees and GPU requests."""
